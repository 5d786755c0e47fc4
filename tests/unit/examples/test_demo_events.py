"""The demo's day of orders: the same for the same seed, and what is expected of it is true."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from examples.shop import catalogue
from examples.shop.events import (
    DAY_START,
    DISORDER_MAX_S,
    NEXT_MORNING,
    TICK_COUNT,
    TICK_S,
    Day,
    Fault,
    Value,
)
from examples.shop.expected import WINDOW_S, DeadLetter, Slot, Total, expected

DAY = Day(seed=7, event_count=30_000)
REQUIRED = ("order_id", "ordered_at", "product", "quantity", "price_cents")


def values(day: Day) -> list[Value]:
    return [value for orders in day.ticks() for value in orders.values()]


def test_the_same_seed_makes_the_same_day() -> None:
    assert values(DAY) == values(Day(DAY.seed, DAY.event_count))
    assert values(DAY) != values(Day(DAY.seed + 1, DAY.event_count))
    assert DAY.tick(200).values() == list(DAY.ticks())[200].values()


@pytest.mark.parametrize("count", [1, 287, 288, 10_007])
def test_a_day_has_as_many_orders_as_asked_for(count: int) -> None:
    ids = np.concatenate([orders.order_id for orders in Day(1, count).ticks()])
    assert ids.tolist() == list(range(count))


def test_orders_are_late_by_no_more_than_they_may_be() -> None:
    """What the pipeline's watermark relies on: an hour is more than a tick and this."""
    start_ms = int(DAY_START.timestamp() * 1000)
    is_disordered = False
    for number, orders in enumerate(DAY.ticks()):
        begin_ms = start_ms + number * TICK_S * 1000
        assert (orders.time_ms >= max(begin_ms - DISORDER_MAX_S * 1000, start_ms)).all()
        assert (orders.time_ms < begin_ms + TICK_S * 1000).all()
        is_disordered |= bool((np.diff(orders.time_ms) < 0).any())
    assert is_disordered
    assert number == TICK_COUNT - 1


def test_every_kind_of_fault_happens() -> None:
    faults = Counter(fault for orders in DAY.ticks() for fault in orders.fault.tolist())
    assert set(faults) == set(Fault)
    assert 0.005 < 1 - faults[Fault.NONE] / DAY.event_count < 0.02


def test_the_next_morning_is_a_good_order_of_a_product_that_is_sold() -> None:
    (value,) = DAY.next_morning().values()
    assert value is not None
    order = json.loads(value)
    assert datetime.fromisoformat(order["ordered_at"]) == NEXT_MORNING
    assert DAY_START + timedelta(days=1, hours=1) < NEXT_MORNING, "windows would stay open"
    assert order["order_id"] == DAY.event_count
    assert categories_from_records()[order["product"]]


def test_products_are_moved_withdrawn_and_listed_again() -> None:
    changes = catalogue.changes(DAY.seed)
    by_product: dict[int, list[int | None]] = {}
    for change in changes:
        by_product.setdefault(change.product, []).append(change.category)
    histories = list(by_product.values())
    assert any(None not in one and len(one) > 1 for one in histories)
    assert any(one[-1] is None for one in histories)
    assert any(None in one and one[-1] is not None for one in histories)
    assert catalogue.categories_at_end(changes) == [
        by_product[product][-1] for product in range(catalogue.PRODUCT_COUNT)
    ]


def test_what_is_expected_is_what_a_reader_of_the_bytes_finds() -> None:
    """An oracle that knows nothing of the generator: the records as they are written."""
    totals: dict[Slot, Total] = {}
    dead: Counter[DeadLetter] = Counter()
    category_of = categories_from_records()
    for value in values(DAY):
        order = order_of(value)
        reason = order if isinstance(order, str) else None
        if isinstance(order, dict) and order["product"] not in category_of:
            reason = "unknown product"
        if reason is not None:
            dead[DeadLetter(reason, value)] += 1
            continue
        assert isinstance(order, dict)
        slot = Slot(window_of(order["ordered_at"]), category_of[order["product"]])
        known = totals.get(slot, Total(0, 0, 0))
        quantity, price = order["quantity"], order["price_cents"]
        totals[slot] = Total(
            known.orders + 1, known.units + quantity, known.revenue_cents + quantity * price
        )
    found = expected(DAY)
    assert found.totals == totals
    assert found.dead_letters == dead
    assert found.order_count + dead.total() == DAY.event_count


def categories_from_records() -> dict[str, str]:
    found: dict[str, str] = {}
    for change in catalogue.changes(DAY.seed):
        if change.value is None:
            del found[change.key.decode()]
        else:
            found[change.key.decode()] = json.loads(change.value)["category"]
    return found


def order_of(value: Value) -> dict[str, Any] | str:
    """The order, or why it is none."""
    try:
        order = json.loads(value or b"")
    except ValueError:
        return "unreadable"
    if not isinstance(order.get("quantity", 0), int):
        return "unreadable"
    if any(name not in order for name in REQUIRED):
        return "incomplete"
    return "impossible" if order["quantity"] <= 0 else order


def window_of(moment: str) -> datetime:
    seconds = int(datetime.fromisoformat(moment).timestamp())
    return datetime.fromtimestamp(seconds - seconds % WINDOW_S, tz=UTC)
