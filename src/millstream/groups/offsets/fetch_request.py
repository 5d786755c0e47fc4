"""The request that a shard gets for OffsetFetch: one group of the client's request."""

from typing import NamedTuple

from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup


class OffsetFetch(NamedTuple):
    """One group of an OffsetFetch request."""

    group: OffsetFetchRequestGroup
    require_stable: bool
    """Fail if transactions that commit offsets are open (KIP-447)."""
    may_wait: bool = False
    """For a coordinator that is being loaded: the waits of many groups would add up."""
