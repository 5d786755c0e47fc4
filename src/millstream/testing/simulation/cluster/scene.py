"""The state that all parts of a cluster's simulation share."""

from collections.abc import Mapping
from typing import Final

from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.state import Node
from millstream.testing.history.checker import PartitionName
from millstream.testing.history.cluster_invariants import Excuses, Violation
from millstream.testing.history.cluster_ledger import ClusterLedger
from millstream.testing.history.cluster_tree import TreeStep
from millstream.testing.history.cluster_views import CommittedState
from millstream.testing.simulation.broker.scene import Scene, Topic
from millstream.testing.simulation.broker.watch import SimulationFailed
from millstream.testing.simulation.process_pause import Pauses

SESSION_MS: Final = 2000
"""Short, so that much happens in little time; two of the keeper's ticks are the least."""


def host_of(broker: int) -> str:
    return f"broker-{broker}"


class ClusterScene(Scene):
    """The shared state of one run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.excuses = Excuses()
        self.ledger = ClusterLedger(self.excuses, self.counts, self.now_s)
        self.pauses = Pauses(self.world.loop, self.world.network)
        self.lost_reply_chance = 0.0
        self.broker_hosts: dict[int, str] = {}
        self.promised: set[str] = set()
        """Topics of which nothing acknowledged may be lost; the others allow unclean elections."""

    @property
    def committed(self) -> CommittedState:
        return self.ledger.tree.committed()

    def may_have_lost(self, partition_name: PartitionName) -> bool:
        """Only where that is allowed: the faults keep one good copy of everything else."""
        return partition_name[0] not in self.promised

    # -- the keeper ------------------------------------------------------------------------

    def on_durable(self, txn: Txn) -> None:
        """A transaction is durable."""
        session = self.ledger.tree.controller_session
        self._check_step(self.ledger.tree.apply(txn), session)

    def on_keeper_restart(self, nodes: Mapping[str, Node], zxid: int) -> None:
        self._check_step(self.ledger.tree.follow(nodes, zxid), 0)

    def _check_step(self, step: TreeStep, session: int) -> None:
        try:
            self.fail_for(self.ledger.take(step, session))
        except SimulationFailed as error:
            self.world.loop.fail(error)  # not raised into the keeper

    def fail_for(self, found: list[Violation]) -> None:
        """End the run with the invariants that are violated."""
        if found:
            lines = "\n".join(str(one)[:900] for one in found[:5])
            raise SimulationFailed(f"{len(found)} invariants violated\n{lines}")


class ClusterTopic(Topic):
    """A topic whose name is never given to another."""

    __slots__ = ()

    def partition_name(self, partition: int) -> PartitionName:
        return (self.name, partition)
