"""A day of orders, the same for the same seed: a quiet night, a busy evening, a sale, some rubbish.

Orders come in ticks of five minutes of the shop's own time. Each tick has random numbers of its
own, so that any of them can be made without those before. Orders are slightly out of order, as they
are when tills and phones send them: none by more than `DISORDER_MAX_S`.

About one in a hundred cannot be an order, each kind in its own way (`Fault`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.shop.catalogue import PRODUCT_COUNT, product_name

TOPIC: Final = "orders"
DAY_START: Final = datetime(2026, 3, 2, tzinfo=UTC)
TICK_S: Final = 300
TICK_COUNT: Final = 24 * 3600 // TICK_S
NEXT_MORNING: Final = DAY_START + timedelta(days=1, hours=8)
DISORDER_MAX_S: Final = 120
CUSTOMER_COUNT: Final = 50_000

SALE_TICKS: Final = range(20 * 12, 20 * 12 + 6)  # from eight to half past eight in the evening
SALE_PRODUCTS: Final = range(20, 28)
SALE_SHARE: Final = 0.6
"""Of the orders during the sale."""

Ints = NDArray[np.int64]
Value = bytes | None


class Fault(IntEnum):
    """What is wrong with an order."""

    NONE = 0
    CUT = 1
    """JSON that ends in the middle."""
    NOISE = 2
    """Bytes that are no text."""
    EMPTY = 3
    NO_VALUE = 4
    QUANTITY_IN_WORDS = 5
    NO_PRICE = 6
    NO_TIME = 7
    QUANTITY_NEGATIVE = 8


FAULT_SHARE: Final = 0.01


class Orders(NamedTuple):
    """Some orders as columns; `fault` says which of them are none."""

    order_id: Ints
    customer: Ints
    time_ms: Ints
    """Since 1970: when the customer ordered, not when the shop wrote it down."""
    product: Ints
    quantity: Ints
    price_cents: Ints
    fault: Ints

    def keys(self) -> list[bytes]:
        """The customer: all that one orders is in one partition, in order."""
        return [b"c-%05d" % customer for customer in self.customer.tolist()]

    def values(self) -> list[Value]:
        """As they are written to the topic."""
        times = np.datetime_as_string(self.time_ms.astype("datetime64[ms]"), unit="ms").tolist()
        rows = zip(*(column.tolist() for column in self), times, strict=True)
        return [_value(*row) for row in rows]

    def where(self, chosen: NDArray[np.bool_]) -> "Orders":
        return Orders(*(column[chosen] for column in self))


@dataclass(frozen=True)
class Day:
    """All orders of a day."""

    seed: int
    event_count: int

    def ticks(self) -> Iterator[Orders]:
        return (self.tick(number) for number in range(TICK_COUNT))

    def tick(self, number: int) -> Orders:
        """The orders that arrive in these five minutes, in the order of their arrival."""
        first, end = self._edges[number], self._edges[number + 1]
        count = end - first
        rng = np.random.default_rng([self.seed, 2, number])
        arrival_s = np.sort(rng.uniform(number * TICK_S, (number + 1) * TICK_S, size=count))
        delay_s = np.minimum(rng.exponential(15, size=count), DISORDER_MAX_S)
        time_ms = (np.maximum(arrival_s - delay_s, 0) * 1000).astype(np.int64) + _start_ms()
        product = _products(rng, count, is_sale=number in SALE_TICKS)
        is_broken = rng.random(count) < FAULT_SHARE
        fault = rng.integers(1, len(Fault), size=count)
        return Orders(
            order_id=np.arange(first, end),
            customer=rng.integers(CUSTOMER_COUNT, size=count),
            time_ms=time_ms,
            product=product,
            quantity=np.minimum(rng.geometric(0.6, size=count), 9),
            price_cents=_LIST_PRICES_CENTS[product] * rng.integers(90, 111, size=count) // 100,
            fault=np.where(is_broken, fault, int(Fault.NONE)),
        )

    def next_morning(self) -> Orders:
        """The first order of the day after. It tells a reader that this day is over."""
        one = {"order_id": self.event_count, "product": 0, "quantity": 1, "price_cents": 100}
        row = {**one, "time_ms": int(NEXT_MORNING.timestamp() * 1000), "customer": 0, "fault": 0}
        return Orders(**{name: np.array([row[name]]) for name in Orders._fields})

    @cached_property
    def _edges(self) -> list[int]:
        """The first order of each tick, and behind them the end."""
        shares = np.cumsum(_demand()) / _demand().sum()
        return [0, *np.rint(shares * self.event_count).astype(np.int64).tolist()]


def _demand() -> NDArray[np.float64]:
    """Orders per tick, in proportion."""
    hour = (np.arange(TICK_COUNT) + 0.5) * TICK_S / 3600
    lunch = 2.0 * np.exp(-(((hour - 12.5) / 1.6) ** 2))
    evening = 3.0 * np.exp(-(((hour - 19.5) / 2.4) ** 2))
    demand = 0.5 + lunch + evening
    demand[list(SALE_TICKS)] *= 2
    return demand


def _start_ms() -> int:
    return int(DAY_START.timestamp() * 1000)


def _products(rng: np.random.Generator, count: int, *, is_sale: bool) -> Ints:
    chosen = np.searchsorted(_POPULARITY, rng.random(count)).astype(np.int64)
    on_sale = rng.integers(SALE_PRODUCTS.start, SALE_PRODUCTS.stop, size=count)
    is_for_sale = rng.random(count) < SALE_SHARE
    return np.where(is_for_sale, on_sale, chosen) if is_sale else chosen


def _popularity() -> NDArray[np.float64]:
    """Running shares, the most wanted product first."""
    weights = 1 / (np.arange(PRODUCT_COUNT) + 20.0)
    return np.cumsum(weights / weights.sum())


_POPULARITY: Final = _popularity()
_LIST_PRICES_CENTS: Final = 199 + (np.arange(PRODUCT_COUNT, dtype=np.int64) * 7919) % 9800


def _value(
    order_id: int,
    customer: int,
    time_ms: int,
    product: int,
    quantity: int,
    price_cents: int,
    fault: int,
    time: str,
) -> Value:
    text = (
        f'{{"order_id":{order_id},"customer":"c-{customer:05}","ordered_at":"{time}Z",'
        f'"product":"{product_name(product)}","quantity":{quantity},"price_cents":{price_cents}}}'
    )
    if fault == Fault.NONE:
        return text.encode()
    return _spoiled(text, Fault(fault), order_id + time_ms)


def _spoiled(text: str, fault: Fault, number: int) -> Value:
    """What is left of an order; `number` gives variety."""
    match fault:
        case Fault.NO_VALUE:
            return None
        case Fault.EMPTY:
            return b""
        case Fault.NOISE:
            return b"\xfe\xff%d" % number
        case Fault.CUT:
            text = text[: 1 + number % (len(text) - 1)]
        case Fault.QUANTITY_IN_WORDS:
            text = re.sub(r'"quantity":\d+', '"quantity":"two"', text)
        case Fault.QUANTITY_NEGATIVE:
            text = text.replace('"quantity":', '"quantity":-')
        case Fault.NO_PRICE:
            text = re.sub(r',"price_cents":\d+', "", text)
        case Fault.NO_TIME:
            text = re.sub(r'"ordered_at":"[^"]*",', "", text)
        case Fault.NONE:
            pass
    return text.encode()
