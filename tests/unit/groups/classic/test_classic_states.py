"""The table of a classic group's states, the diagram of it, and the deadlines of its members."""

import random
import re

import pytest

from kits.paths import DOCS
from millstream.groups.classic.states import (
    HEARTBEAT_ERRORS,
    TRANSITIONS,
    Event,
    GroupState,
    diagram,
    next_state,
)
from millstream.groups.deadlines import Deadlines
from millstream.model.ids import MemberId
from millstream.model.invariant import InvariantViolated

PAGE = DOCS / "groups.md"

KAFKA_PREVIOUS = {
    GroupState.EMPTY: {GroupState.PREPARING},
    GroupState.PREPARING: {GroupState.STABLE, GroupState.COMPLETING, GroupState.EMPTY},
    GroupState.COMPLETING: {GroupState.PREPARING},
    GroupState.STABLE: {GroupState.COMPLETING},
    GroupState.DEAD: set(GroupState),
}
"""Which states may come before which, in Kafka's group coordinator."""
LOADING = {Event.LOADED_MEMBERS, Event.LOADED_EMPTY}


def test_the_steps_are_those_of_kafka() -> None:
    steps: dict[GroupState, set[GroupState]] = {state: set() for state in GroupState}
    for (state, event), following in TRANSITIONS.items():
        if event not in LOADING:
            steps[following].add(state)
    assert steps == KAFKA_PREVIOUS


def test_every_state_is_reached_and_every_event_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert set(HEARTBEAT_ERRORS) == set(GroupState)
    reached = {GroupState.EMPTY}
    for _ in GroupState:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
    assert reached == set(GroupState)


def test_a_group_is_never_stuck() -> None:
    """I-31. From every state but the last one both Stable and Empty can be reached."""
    for start in set(GroupState) - {GroupState.DEAD}:
        reached = {start}
        for _ in GroupState:
            reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
        assert {GroupState.STABLE, GroupState.EMPTY} <= reached


def test_a_step_that_is_not_in_the_table_stops_us() -> None:
    with pytest.raises(InvariantViolated, match="I-31"):
        next_state(GroupState.EMPTY, Event.ASSIGNMENT_WRITTEN)


def test_the_diagram_has_every_step() -> None:
    text = diagram()
    arrows = re.findall(r"(\w+) --> (\w+): (.+)", text)
    told = {
        (state.value, to.value, event.value)
        for (state, event), to in TRANSITIONS.items()
        if state is not GroupState.DEAD
    }
    assert set(arrows) == told
    assert text.startswith("stateDiagram-v2\n    [*] --> Empty\n")


@pytest.mark.skipif(not PAGE.exists(), reason="docs/groups.md is not there")
def test_the_docs_have_the_diagram_of_the_table() -> None:
    assert f"```mermaid\n{diagram()}```" in PAGE.read_text()


# -- deadlines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_deadlines_are_those_of_a_plain_dict(seed: int) -> None:
    """Whatever is set, moved, dropped and taken; `seed` is the parameter of the test."""
    chance = random.Random(seed)
    deadlines, plain, now_ms = Deadlines[MemberId](), dict[MemberId, int](), 0
    for _ in range(400):
        key = MemberId(str(chance.randrange(8)))
        what = chance.randrange(4)
        if what < 2:
            plain[key] = now_ms + chance.randrange(1, 50)
            deadlines.set(key, plain[key])
        elif what == 2:
            plain.pop(key, None)
            deadlines.cancel(key)
        else:
            now_ms += chance.randrange(20)
        taken = []
        while (due := deadlines.take_due(now_ms)) is not None:
            taken.append(due)
        expected = {one for one, at_ms in plain.items() if at_ms <= now_ms}
        assert set(taken) == expected
        assert len(taken) == len(expected)
        for one in expected:
            del plain[one]
        assert deadlines.next_ms() == min(plain.values(), default=None)
        assert {one: deadlines.of(one) for one in plain} == plain
