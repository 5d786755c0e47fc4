"""Which faults are allowed: one good copy of everything acknowledged is always left.

Without this a loss would prove nothing. A power loss takes unsynced data, and a broker that comes
back without proof of a clean stop leaves the ISR, whatever is on its disk. So a broker may lose its
power, or a disk for good, only while another one, up and undamaged, is known to have everything;
and while the controller has not yet processed such a broker, no other broker whose copy is the last
good one may go down. Until then a log directory that came back is no good copy either. Everything
else is allowed, also that all are killed: the page cache stays.
"""

from collections.abc import Callable, Collection

from millstream.testing.history.cluster_views import (
    CommittedPartition,
    CommittedState,
    PartitionKey,
)


class FaultBudget:
    """Decides by what is committed and by which brokers are healthy."""

    def __init__(
        self,
        committed: Callable[[], CommittedState],
        *,
        is_promised: Callable[[PartitionKey], bool],
        wounded: set[int],
        without_directory: set[int] | None = None,
    ) -> None:
        """`wounded` lost their power and the controller has not processed them since."""
        self._committed = committed
        self._is_promised = is_promised
        self._wounded = wounded
        self._without_directory = set() if without_directory is None else without_directory

    def may_lose_power(self, broker: int, healthy: Collection[int]) -> bool:
        """`healthy` are the brokers that run, with a session."""
        return all(
            broker not in _trusted(one) or self._good(one, healthy) - {broker}
            for one in self._promised()
        )

    def may_go_down(self, broker: int, healthy: Collection[int]) -> bool:
        """Whether it may be killed, stopped or paused."""
        wounded = self._harmed - {broker}
        return all(
            wounded.isdisjoint(one.holders) or self._good(one, healthy) - {broker}
            for one in self._promised()
        )

    def _promised(self) -> list[CommittedPartition]:
        partitions = self._committed().partitions
        return [one for key, one in partitions.items() if self._is_promised(key)]

    def _good(self, one: CommittedPartition, healthy: Collection[int]) -> set[int]:
        return {member for member in one.holders if member in healthy} - self._harmed

    @property
    def _harmed(self) -> set[int]:
        return self._wounded | self._without_directory


def _trusted(one: CommittedPartition) -> tuple[int, ...]:
    """The replicas that may be elected."""
    return one.holders or (one.last_known_leader,)
