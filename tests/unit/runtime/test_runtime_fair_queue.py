"""The order of those that wait: who has had least comes first."""

from collections import Counter

import pytest

from millstream.runtime.fair_queue import FairQueue


def serve(queue: FairQueue[str], costs: dict[str, float], turns: int) -> list[str]:
    """Each wants more after each of its turns."""
    order = []
    for _ in range(turns):
        key = queue.pop()
        queue.charge(key, costs[key])
        queue.add(key)
        order.append(key)
    return order


def test_equals_take_turns_in_the_order_they_came() -> None:
    queue: FairQueue[str] = FairQueue()
    for key in "abc":
        queue.add(key)
        queue.add(key)  # each waits once
    assert len(queue) == 3
    assert serve(queue, dict.fromkeys("abc", 0.0), 7) == list("abcabca")


def test_each_gets_the_same_time_whatever_its_turns_cost() -> None:
    queue: FairQueue[str] = FairQueue()
    costs = {"cheap": 1.0, "dear": 9.0}
    for key in costs:
        queue.add(key)
    turns = Counter(serve(queue, costs, 100))
    assert turns["cheap"] == pytest.approx(90, abs=2)


def test_who_asks_rarely_is_next_however_many_wait() -> None:
    queue: FairQueue[str] = FairQueue(credit=0.5)
    many = [f"busy {number}" for number in range(500)]
    for key in many:
        queue.add(key)
    costs = dict.fromkeys(many, 1.0)
    serve(queue, costs, 700)
    for _ in range(3):
        queue.add("rare")
        assert queue.pop() == "rare"
        queue.charge("rare", 1.0)
        serve(queue, costs, 900)


def test_endless_row_of_newcomers_shuts_nobody_out() -> None:
    queue: FairQueue[str] = FairQueue()
    for key in ("old 1", "old 2"):
        queue.add(key)
    order = []
    for number in range(300):
        queue.add(f"new {number}")
        key = queue.pop()
        queue.charge(key, 1.0)
        order.append(key)
        if key.startswith("old"):
            queue.add(key)
    # Those that wait become more and more, so the share of each becomes less and less.
    assert order.count("old 1") >= 10
    assert order.count("old 2") >= 10
    assert {"old 1", "old 2"} <= set(order[-100:])


def test_several_that_ask_rarely_are_next_within_their_credit() -> None:
    queue: FairQueue[str] = FairQueue(credit=1.0)
    many = [f"busy {number}" for number in range(10)]
    for key in many:
        queue.add(key)
    serve(queue, dict.fromkeys(many, 1.0), 25)
    order = []
    for number in range(30):
        queue.add(f"rare {number}")
        order.append(queue.pop())
        queue.charge(order[-1], 1.0)
    first = [key.startswith("rare") for key in order].index(False)
    assert 5 <= first <= 15  # one for each of those that wait, and no more


def test_nobody_saves_up_by_being_idle() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a")
    serve(queue, {"a": 1.0}, 100)
    queue.add("late")
    assert Counter(serve(queue, {"a": 1.0, "late": 1.0}, 20))["late"] == 10


def test_charges_that_mean_nothing_any_more_are_dropped() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(10_000):
        queue.add(number)
        assert queue.pop() == number
        queue.charge(number, 1.0)
        queue.add(-1)
        assert queue.pop() == -1
        queue.charge(-1, 2.0)
    assert len(queue._charged) < 200


def test_one_that_was_discarded_is_not_next() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a")
    queue.add("b")
    queue.discard("a")
    assert "a" not in queue
    assert queue.pop() == "b"
    assert not queue
    queue.add("a")
    assert queue.pop() == "a"
