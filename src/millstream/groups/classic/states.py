"""The states of a classic group and the table of transitions between them.

Every transition is caused by an `Event`; a pair that is not in the table is a bug of ours. The
diagram in the docs is generated from the same table (`diagram`).
"""

from enum import Enum
from typing import Final

from millstream.model.invariant import invariant
from millstream.wire.errors import ErrorCode


class GroupState(Enum):
    """The values are Kafka's names: clients and tools see them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """What causes a transition; the values are the labels of the diagram."""

    MEMBER_JOINED = "a member joins, or rejoins with changes"
    MEMBER_LOST = "a member leaves or its session expires"
    ALL_JOINED = "all have joined, or the join deadline is over"
    NONE_JOINED = "the join deadline is over and no member is left"
    ASSIGNMENT_WRITTEN = "the leader's assignment is written"
    ASSIGNMENT_REFUSED = "the log refuses the assignment"
    SYNC_TIMED_OUT = "members did not send SyncGroup in time"
    LOADED_TOO_LARGE = "loaded with more members than are allowed"
    CONVERTED = "converted from a consumer group"
    LOADED_MEMBERS = "a record with members is read"
    LOADED_EMPTY = "a record without members is read"
    REMOVED = "deleted, converted or unloaded"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

TRANSITIONS: Final[dict[tuple[GroupState, Event], GroupState]] = {
    (_EMPTY, Event.MEMBER_JOINED): _PREPARING,
    (_EMPTY, Event.LOADED_MEMBERS): _STABLE,
    (_EMPTY, Event.LOADED_EMPTY): _EMPTY,
    (_EMPTY, Event.REMOVED): _DEAD,
    (_PREPARING, Event.ALL_JOINED): _COMPLETING,
    (_PREPARING, Event.NONE_JOINED): _EMPTY,
    (_PREPARING, Event.REMOVED): _DEAD,
    (_COMPLETING, Event.ASSIGNMENT_WRITTEN): _STABLE,
    (_COMPLETING, Event.ASSIGNMENT_REFUSED): _PREPARING,
    (_COMPLETING, Event.MEMBER_JOINED): _PREPARING,
    (_COMPLETING, Event.MEMBER_LOST): _PREPARING,
    (_COMPLETING, Event.SYNC_TIMED_OUT): _PREPARING,
    (_COMPLETING, Event.REMOVED): _DEAD,
    (_STABLE, Event.MEMBER_JOINED): _PREPARING,
    (_STABLE, Event.MEMBER_LOST): _PREPARING,
    (_STABLE, Event.SYNC_TIMED_OUT): _PREPARING,
    (_STABLE, Event.LOADED_TOO_LARGE): _PREPARING,
    (_STABLE, Event.CONVERTED): _PREPARING,
    (_STABLE, Event.LOADED_MEMBERS): _STABLE,
    (_STABLE, Event.LOADED_EMPTY): _EMPTY,
    (_STABLE, Event.REMOVED): _DEAD,
    (_DEAD, Event.REMOVED): _DEAD,
}

HEARTBEAT_ERRORS: Final[dict[GroupState, ErrorCode]] = {
    _EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    _PREPARING: ErrorCode.REBALANCE_IN_PROGRESS,
    # After its JoinGroup response a member heartbeats, also while the leader still assigns.
    _COMPLETING: ErrorCode.NONE,
    _STABLE: ErrorCode.NONE,
    _DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The error code of the response to a member of the current generation."""


def next_state(state: GroupState, event: Event) -> GroupState:
    """Look up the transition in the table."""
    following = TRANSITIONS.get((state, event))
    invariant(following is not None, "I-31 no such step of a group", state=state, event=event)
    return following or state


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {_EMPTY.value}"]
    for (state, event), following in TRANSITIONS.items():
        if state is not _DEAD:
            lines.append(f"    {state.value} --> {following.value}: {event.value}")
    lines.append(f"    {_DEAD.value} --> [*]")
    return "\n".join(lines) + "\n"
