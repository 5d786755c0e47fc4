"""What the pipeline must find, from the seed alone: no broker, no Spark, no JSON is asked."""

from collections import Counter
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.shop import catalogue
from examples.shop.events import DAY_START, Day, Fault, Orders, Value

WINDOW_S: Final = 15 * 60
WINDOW_COUNT: Final = 24 * 3600 // WINDOW_S

UNKNOWN_PRODUCT: Final = "unknown product"
REASONS: Final = {
    Fault.CUT: "unreadable",
    Fault.NOISE: "unreadable",
    Fault.EMPTY: "unreadable",
    Fault.NO_VALUE: "unreadable",
    Fault.QUANTITY_IN_WORDS: "unreadable",
    Fault.NO_PRICE: "incomplete",
    Fault.NO_TIME: "incomplete",
    Fault.QUANTITY_NEGATIVE: "impossible",
}


class Slot(NamedTuple):
    """What a total is of."""

    window_start: datetime
    category: str

    def __str__(self) -> str:
        return f"{self.category} from {self.window_start:%H:%M}"


class Total(NamedTuple):
    """Of the orders of one slot."""

    orders: int
    units: int
    revenue_cents: int


class DeadLetter(NamedTuple):
    """A record that is no order."""

    fault: str
    value: Value


class Expected(NamedTuple):
    """Of a whole day."""

    totals: dict[Slot, Total]
    dead_letters: Counter[DeadLetter]

    @property
    def order_count(self) -> int:
        """Good ones."""
        return sum(total.orders for total in self.totals.values())


def expected(day: Day) -> Expected:
    """Everything that the orders of the day must come to."""
    final = catalogue.categories_at_end(catalogue.changes(day.seed))
    category_of = np.array([-1 if one is None else one for one in final])
    sums = np.zeros((3, WINDOW_COUNT * len(catalogue.CATEGORIES)), dtype=np.int64)
    dead: Counter[DeadLetter] = Counter()
    for orders in day.ticks():
        is_good = (orders.fault == Fault.NONE) & (category_of[orders.product] >= 0)
        _add(sums, orders.where(is_good), category_of)
        dead.update(_dead_letters(orders.where(~is_good)))
    return Expected(_totals(sums), dead)


def _add(sums: NDArray[np.int64], orders: Orders, category_of: NDArray[np.int64]) -> None:
    window = (orders.time_ms // 1000 - int(DAY_START.timestamp())) // WINDOW_S
    slot = window * len(catalogue.CATEGORIES) + category_of[orders.product]
    revenue = orders.quantity * orders.price_cents
    amounts = (np.ones_like(slot), orders.quantity, revenue)
    for row, amount in zip(sums, amounts, strict=True):
        np.add.at(row, slot, amount)


def _dead_letters(orders: Orders) -> list[DeadLetter]:
    reasons = [REASONS.get(Fault(fault), UNKNOWN_PRODUCT) for fault in orders.fault.tolist()]
    return list(map(DeadLetter, reasons, orders.values()))


def _totals(sums: NDArray[np.int64]) -> dict[Slot, Total]:
    found = {}
    for position, (orders, units, cents) in enumerate(sums.T.tolist()):
        window, category = divmod(position, len(catalogue.CATEGORIES))
        if orders:
            slot = Slot(window_start(window), catalogue.CATEGORIES[category])
            found[slot] = Total(orders, units, cents)
    return found


def window_start(window: int) -> datetime:
    return datetime.fromtimestamp(DAY_START.timestamp() + window * WINDOW_S, tz=DAY_START.tzinfo)
