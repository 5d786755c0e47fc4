"""What was found against what must be: every difference in words, none when all is well."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from examples.shop.events import NEXT_MORNING
from examples.shop.expected import DeadLetter, Expected, Slot, Total
from examples.shop.results import Results, Stored


class Check(NamedTuple):
    """One promise, and what is wrong with it."""

    name: str
    """With what was compared."""
    differences: list[str]

    @property
    def is_good(self) -> bool:
        return not self.differences


def checks(wanted: Expected, found: Results, *, late_rows: int) -> list[Check]:
    """All promises of the demo."""
    late = [f"{late_rows:,} orders came too late for their window"] if late_rows else []
    dead_count = wanted.dead_letters.total()
    return [
        Check(
            f"{len(wanted.totals):,} totals of {wanted.order_count:,} orders in the topic",
            [*late, *total_differences(wanted.totals, found.totals)],
        ),
        Check(
            f"{dead_count:,} dead letters, each with its reason",
            dead_letter_differences(wanted.dead_letters, found.dead_letters.values()),
        ),
        Check(
            f"{wanted.order_count + 1:,} orders in Parquet, each once",
            stored_differences(wanted, found.stored),
        ),
    ]


def total_differences(
    wanted: Mapping[Slot, Total], found: Iterable[tuple[Slot, Total]]
) -> list[str]:
    """A total may be there again, as after a batch that was repeated; but not with other sums."""
    known: dict[Slot, Total] = {}
    differences = []
    for slot, total in found:
        if known.setdefault(slot, total) != total:
            differences.append(f"{slot} has two totals: {_text(known[slot])}, {_text(total)}")
    return differences + [
        f"{slot}: {_text(wanted.get(slot))} expected, {_text(known.get(slot))} found"
        for slot in sorted(wanted.keys() | known.keys())
        if wanted.get(slot) != known.get(slot)
    ]


def dead_letter_differences(wanted: Counter[DeadLetter], found: Iterable[DeadLetter]) -> list[str]:
    """Both ways: broken orders that are not there, and records that should not be there."""
    counted = Counter(found)
    return [
        *(
            f"{count} x {one.fault}: {one.value!r} is missing"
            for one, count in (wanted - counted).items()
        ),
        *(
            f"{count} x {one.fault}: {one.value!r} is too much"
            for one, count in (counted - wanted).items()
        ),
    ]


def stored_differences(wanted: Expected, found: Stored) -> list[str]:
    """The one order of the next morning is stored too, beside those of the day."""
    morning = [one for one in found.totals if one.window_start >= NEXT_MORNING]
    of_day = [(slot, total) for slot, total in found.totals.items() if slot not in morning]
    differences = total_differences(wanted.totals, of_day)
    if len(morning) != 1 or found.totals[morning[0]].orders != 1:
        differences.append(f"{len(morning)} totals of the next morning instead of one order")
    if twice := found.order_count - found.distinct_count:
        differences.append(f"{twice:,} orders are there twice")
    return differences


def _text(total: Total | None) -> str:
    if total is None:
        return "none"
    return (
        f"{total.orders:,} orders with {total.units:,} units for {total.revenue_cents / 100:,.2f}"
    )
