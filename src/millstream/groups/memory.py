"""What the members of groups keep in memory, and how much of it there may be.

A member sends as much about itself as a request can hold, and it stays in memory as long as the
member is in the group. A group with more than fits its record could never write that record, and so
never have an assignment: it is refused when the member joins. All groups of a broker share one
limit; beyond it no member is added, while those that are there go on.
"""

from collections.abc import Callable, Iterable
from typing import Final

from millstream.groups.errors import GroupFull
from millstream.model.limits import GROUP_MEMBERS_BYTES_MAX, GROUPS_MEMBERS_BYTES_MAX, KIB
from millstream.shards.effects import Caller
from millstream.shards.errors import CoordinatorNotAvailable
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest

MEMBER_BYTES: Final = KIB
"""A member without anything that it sends: its objects, deadlines and ids."""

NAME_BYTES: Final = 100
"""A string in a set, without its characters."""


class GroupMemory:
    """The sum over all groups of a broker; the shards share one."""

    __slots__ = ("_size_max", "size_bytes")

    def __init__(self, size_max: Callable[[], int] = lambda: GROUPS_MEMBERS_BYTES_MAX) -> None:
        self._size_max = size_max
        self.size_bytes = 0

    def check(self, more_bytes: int, *, group_bytes: int) -> None:
        """Raise unless a group of `group_bytes` may have `more_bytes` more."""
        if more_bytes <= 0:
            return
        if group_bytes + more_bytes > GROUP_MEMBERS_BYTES_MAX:
            raise GroupFull(
                "The members of the group have more metadata than "
                f"{GROUP_MEMBERS_BYTES_MAX} bytes together."
            )
        if self.size_bytes + more_bytes > self._size_max():
            raise CoordinatorNotAvailable


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Of the protocols that a member supports."""
    return sum(NAME_BYTES + len(name) + len(metadata) for name, metadata in protocols)


def names_bytes(names: Iterable[str]) -> int:
    """Of the topics that a member subscribes to."""
    return sum(NAME_BYTES + len(name) for name in names)


def joining_bytes(caller: Caller, request: JoinGroupRequest) -> int:
    """What a member would keep of its JoinGroup."""
    size = MEMBER_BYTES + len(caller.client_id) + len(request.group_instance_id or "")
    return size + sum(NAME_BYTES + len(one.name) + len(one.metadata) for one in request.protocols)


def subscribing_bytes(request: ConsumerGroupHeartbeatRequest) -> int:
    """What a member would keep of its ConsumerGroupHeartbeat; 0 if it says nothing new."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if names is None and regex is None:
        return 0
    return MEMBER_BYTES + names_bytes(names or ()) + len(regex or "")
