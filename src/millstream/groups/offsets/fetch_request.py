"""What a shard is asked by OffsetFetch: one group of the request."""

from typing import NamedTuple

from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup


class OffsetFetch(NamedTuple):
    """One group of an OffsetFetch request."""

    group: OffsetFetchRequestGroup
    is_stable: bool
    """Fail where transactions that commit offsets are open (KIP-447)."""
    may_wait: bool = False
    """For a coordinator that is being loaded: the waits of many groups would add up."""
