"""The diagrams of docs/groups.md, generated from the tables of the code.

`PYTHONPATH=tests python tests/kits/groups/group_docs.py` writes them into the page; a test fails
when they are outdated.
"""

import re
from functools import partial
from pathlib import Path
from typing import Final

from millstream.groups.classic.states import diagram
from millstream.groups.consumer.member import MemberState

PAGE = Path(__file__).resolve().parents[3] / "docs" / "groups.md"

MEMBER_STATES: Final = {
    MemberState.STABLE: "Stable",
    MemberState.UNREVOKED_PARTITIONS: "UnrevokedPartitions",
    MemberState.UNRELEASED_PARTITIONS: "UnreleasedPartitions",
}
_STABLE, _UNREVOKED, _UNRELEASED = MEMBER_STATES
_ALL_FREE, _REVOKE = "all of its target is free", "the new target lacks some of its partitions"
_WAITS, _REVOKED = "others still own some of its target", "it has revoked them"

MEMBER_STEPS: Final[dict[tuple[MemberState | None, MemberState | None], str]] = {
    (None, _STABLE): f"joins, {_ALL_FREE}",
    (None, _UNRELEASED): f"joins, {_WAITS}",
    (_STABLE, _UNREVOKED): _REVOKE,
    (_STABLE, _UNRELEASED): _WAITS,
    (_UNREVOKED, _STABLE): f"{_REVOKED}, {_ALL_FREE}",
    (_UNREVOKED, _UNRELEASED): f"{_REVOKED}, {_WAITS}",
    (_UNRELEASED, _STABLE): "they are free now",
    (_UNRELEASED, _UNREVOKED): _REVOKE,
    (_STABLE, None): "leaves, or its session expires",
    (_UNREVOKED, None): "leaves, its session expires, or it does not revoke them in time",
    (_UNRELEASED, None): "leaves, or its session expires",
}
"""The transitions of a member that a record can cause; a test checks them. None: no member."""


def member_diagram() -> str:
    """The steps as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (before, after), why in MEMBER_STEPS.items():
        names = (MEMBER_STATES[one] if one is not None else "[*]" for one in (before, after))
        lines.append(f"    {' --> '.join(names)}: {why}")
    return "\n".join(lines) + "\n"


def with_diagrams(page: str) -> str:
    """The page with both diagrams replaced. ValueError if one has no place."""
    for name, text in (("classic", diagram()), ("member", member_diagram())):
        place = re.compile(f"(<!-- {name} diagram -->\n\n```mermaid\n).*?(```)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"no place for the {name} diagram")
        page = place.sub(partial(_filled, text), page)
    return page


def _filled(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}{text}{found[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
