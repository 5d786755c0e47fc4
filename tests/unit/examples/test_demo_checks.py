"""The demo's checks: nothing to say when all is right, and the right words when it is not."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from examples.shop import __main__ as command
from examples.shop.checks import checks
from examples.shop.events import DAY_START, NEXT_MORNING
from examples.shop.expected import DeadLetter, Expected, Slot, Total
from examples.shop.processes import DemoFailed
from examples.shop.results import Results, Stored
from examples.shop.run import tell
from rich.console import Console

BOOKS = Slot(DAY_START + timedelta(hours=8), "books")
GAMES = Slot(DAY_START + timedelta(hours=8), "games")
TOYS = Slot(DAY_START + timedelta(hours=9), "toys")
MORNING = Slot(NEXT_MORNING, "books")
CUT, EMPTY = DeadLetter("unreadable", b'{"a'), DeadLetter("unreadable", b"")


@dataclass
class Scene:
    """A perfect outcome, to be spoiled."""

    wanted: Expected = field(
        default_factory=lambda: Expected(
            {BOOKS: Total(2, 3, 400), GAMES: Total(1, 1, 50)}, Counter({CUT: 1, EMPTY: 2})
        )
    )
    totals: list[tuple[Slot, Total]] = field(
        default_factory=lambda: [(BOOKS, Total(2, 3, 400)), (GAMES, Total(1, 1, 50))]
    )
    dead: dict[str, DeadLetter] = field(
        default_factory=lambda: {"orders/0/1": CUT, "orders/0/2": EMPTY, "orders/1/2": EMPTY}
    )
    stored: dict[Slot, Total] = field(
        default_factory=lambda: {
            BOOKS: Total(2, 3, 400),
            GAMES: Total(1, 1, 50),
            MORNING: Total(1, 1, 100),
        }
    )
    distinct_count: int = 4
    late_rows: int = 0

    def differences(self) -> list[str]:
        stored = Stored(self.stored, 4, self.distinct_count)
        found = Results(self.totals, self.dead, stored)
        compared = checks(self.wanted, found, late_rows=self.late_rows)
        return [text for check in compared for text in check.differences]


def test_nothing_is_wrong_when_all_is_there() -> None:
    assert Scene().differences() == []


def test_a_total_that_was_written_again_is_no_difference() -> None:
    scene = Scene()
    scene.totals.append(scene.totals[0])
    assert scene.differences() == []


def test_a_wrong_total_is_named() -> None:
    scene = Scene()
    scene.totals[1] = (GAMES, Total(1, 1, 51))
    assert scene.differences() == [
        "games from 08:00: 1 orders with 1 units for 0.50 expected, "
        "1 orders with 1 units for 0.51 found"
    ]


def test_two_different_totals_for_one_window_are_named() -> None:
    scene = Scene()
    scene.totals.append((GAMES, Total(1, 2, 50)))
    (text,) = scene.differences()
    assert text.startswith("games from 08:00 has two totals: 1 orders with 1 units")


def test_missing_and_unexpected_totals_are_named() -> None:
    scene = Scene()
    scene.totals[1] = (TOYS, Total(1, 1, 50))
    assert scene.differences() == [
        "games from 08:00: 1 orders with 1 units for 0.50 expected, none found",
        "toys from 09:00: none expected, 1 orders with 1 units for 0.50 found",
    ]


def test_dead_letters_are_compared_with_reason_and_number() -> None:
    scene = Scene()
    scene.dead["orders/0/1"] = DeadLetter("incomplete", CUT.value)
    del scene.dead["orders/1/2"]
    assert scene.differences() == [
        "1 x unreadable: b'{\"a' is missing",
        "1 x unreadable: b'' is missing",
        "1 x incomplete: b'{\"a' is too much",
    ]


@pytest.mark.parametrize("moment", [BOOKS, MORNING])
def test_an_order_that_is_not_stored_is_a_difference(moment: Slot) -> None:
    scene = Scene()
    del scene.stored[moment]
    assert len(scene.differences()) == 1


def test_orders_stored_twice_and_orders_too_late_are_differences() -> None:
    assert Scene(distinct_count=3).differences() == ["1 orders are there twice"]
    assert Scene(late_rows=2).differences() == ["2 orders came too late for their window"]


def test_at_most_five_differences_of_a_check_are_shown() -> None:
    scene = Scene(totals=[(at(hour), Total(1, 1, 1)) for hour in range(9)])
    found = Results(scene.totals, scene.dead, Stored(scene.stored, 4, 4))
    console = Console(record=True, width=200, quiet=True)
    with console.capture() as shown:
        console.quiet = False
        tell(checks(scene.wanted, found, late_rows=0), console)
    lines = shown.get().splitlines()
    assert lines[0] == "WRONG: 2 totals of 3 orders in the topic"
    assert lines[6] == "  and 6 more"
    assert lines[7:] == [
        "matched: 3 dead letters, each with its reason",
        "matched: 4 orders in Parquet, each once",
    ]


def at(hour: int) -> Slot:
    return Slot(datetime.fromtimestamp(DAY_START.timestamp() + hour, tz=DAY_START.tzinfo), "x")


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (True, 0, ""),
        (False, 1, ""),
        (DemoFailed("no Java [here]"), 1, "the demo failed: no Java [here]\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
    ],
)
def test_the_exit_code_is_0_only_if_everything_matched(
    outcome: bool | BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: object) -> bool:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr("sys.argv", ["shop", "--events", "5"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("MPLCONFIGDIR", "kept")
    assert command.main() == code
    assert capsys.readouterr().out == said
