"""The tables of docs/configuration.md, made from the definitions.

`PYTHONPATH=tests python tests/kits/broker/config_docs.py` writes them into the page; a test says
when that was forgotten.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from millstream.model.config.broker_keys import BROKER_KEYS, OWN_KEYS
from millstream.model.config.definition import ConfigKey, Mode
from millstream.model.config.inert_reasons import (
    INERT_BROKER_PREFIXES,
    INERT_BROKER_REASONS,
    INERT_TOPIC_REASONS,
)
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.topic_keys import TOPIC_KEYS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"

MODES = {Mode.READ_ONLY: "no", Mode.PER_BROKER: "per broker", Mode.CLUSTER_WIDE: "yes"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str | None) -> str:
    if text is None:
        return "not set"
    return f"`{text}`" if text else "empty"


def tables() -> dict[str, str]:
    """Each table by the name in its marks."""
    return {
        "topic keys": table(
            ["Key", "Type", "Default", "Allowed", "Broker's default", "What it does"],
            [
                [
                    *_common(key),
                    code(key.synonyms[0]) if key.synonyms else "none",
                    key.documentation,
                ]
                for key in TOPIC_KEYS.values()
                if not key.is_internal
            ],
        ),
        "inert topic keys": table(
            ["Key", "Why it has no effect"],
            [[code(name), reason] for name, reason in INERT_TOPIC_REASONS.items()],
        ),
        "broker keys": table(
            ["Key", "Type", "Default", "Allowed", "Changes while running", "What it does"],
            [
                [*_common(key), MODES[key.mode], key.documentation + _own(key)]
                for key in BROKER_KEYS.values()
            ],
        ),
        "later keys": table(
            ["Key", "Type", "Default", "For"],
            [
                [
                    code(key.name),
                    key.type.name.lower(),
                    code(key.default),
                    key.documentation.removeprefix("Kept for ").rstrip("."),
                ]
                for key in LATER_KEYS.values()
            ],
        ),
        "inert broker keys": table(
            ["Key", "Why it has no effect"],
            [
                *([code(name), reason] for name, reason in INERT_BROKER_REASONS.items()),
                *([code(name + "*"), reason] for name, reason in INERT_BROKER_PREFIXES.items()),
            ],
        ),
    }


def _common(key: ConfigKey) -> list[str]:
    return [code(key.name), key.type.name.lower(), code(key.default), key.allowed]


def _own(key: ConfigKey) -> str:
    return " *Ours, not Kafka's.*" if key.name in OWN_KEYS else ""


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for name, text in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
