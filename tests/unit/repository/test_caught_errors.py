"""Two rules for `except` clauses of the server: what is kept has no frames, and a process without
memory ends.
"""

from pathlib import Path

import pytest

from kits.paths import ROOT
from kits.repository.caught_errors import kept_errors, swallowed_errors

PACKAGE = ROOT / "src" / "millstream"
SERVER = ("broker", "controller", "groups", "replication", "shards", "storage")
OUTERMOST = (*SERVER, "coordination", "observe", "rpc", "runtime")
OF_CLIENTS = frozenset({"runtime/loop_thread.py"})
"""In a program of somebody else, which decides itself."""


def modules(packages: tuple[str, ...]) -> list[Path]:
    return [path for one in packages for path in sorted((PACKAGE / one).rglob("*.py"))]


def test_an_error_that_is_kept_has_no_frames() -> None:
    """Frames keep what a request brought, and are in cycles with what they keep."""
    broken = {
        f"{path.relative_to(PACKAGE)}:{one.line}: {one.text}"
        for path in modules(SERVER)
        for one in kept_errors(path.read_text())
    }
    assert broken == set()


def test_who_catches_everything_ends_a_process_without_memory() -> None:
    broken = {
        f"{path.relative_to(PACKAGE)}:{one.line}: {one.text}"
        for path in modules(OUTERMOST)
        if str(path.relative_to(PACKAGE)) not in OF_CLIENTS
        for one in swallowed_errors(path.read_text())
    }
    assert broken == set()


CLAUSE = "try:\n    work()\nexcept OSError as error:\n    {}\n"


@pytest.mark.parametrize(
    "body",
    [
        "results.append(error)",
        "results[1] = error",
        "self.failure = error",
        "future.set_exception(error)",
        "outcome = Outcome(None, error)",
        "outcome = Outcome(error=error)",
        "results = [error] * 5",
        "sink.respond(error)",
    ],
)
def test_keeping_is_recognised(body: str) -> None:
    assert kept_errors(CLAUSE.format(body))
    assert not kept_errors(
        CLAUSE.format(
            body.replace("error)", "without_frames(error))")
            .replace("= error", "= without_frames(error)")
            .replace("[error]", "[without_frames(error)]")
        )
    )


@pytest.mark.parametrize(
    "body",
    ["code = code_of(error)", "log.error('x', error=error)", "raise Other(error) from error"],
)
def test_using_is_not_keeping(body: str) -> None:
    assert not kept_errors(CLAUSE.format(body))


def test_swallowing_is_recognised() -> None:
    clause = "try:\n    work()\nexcept Exception as error:\n    {}\n"
    assert swallowed_errors(clause.format("log.error('failed', error=error)"))
    assert not swallowed_errors(clause.format("end_if_fatal(error)"))
    assert not swallowed_errors(clause.format("raise"))
