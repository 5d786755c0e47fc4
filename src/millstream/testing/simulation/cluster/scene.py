"""What everybody in the simulation of a cluster shares."""

from collections.abc import Mapping
from typing import Final

from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.state import Node
from millstream.testing.history.checker import Place
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
    """Of one run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.excuses = Excuses()
        self.ledger = ClusterLedger(self.excuses, self.made, self.now_s)
        self.pauses = Pauses(self.world.loop, self.world.network)
        self.lost_reply_chance = 0.0
        self.broker_hosts: dict[int, str] = {}
        self.promised: set[str] = set()
        """Topics of which nothing acknowledged may be lost; the others allow unclean elections."""

    @property
    def committed(self) -> CommittedState:
        return self.ledger.tree.committed()

    def may_have_lost(self, place: Place) -> bool:
        """Only where that is allowed: the faults keep one good copy of everything else."""
        return place[0] not in self.promised

    # -- the keeper ------------------------------------------------------------------------

    def took(self, txn: Txn) -> None:
        """A transaction is durable."""
        session = self.ledger.tree.controller_session
        self._look_at(self.ledger.tree.apply(txn), session)

    def keeper_came_back(self, nodes: Mapping[str, Node], zxid: int) -> None:
        self._look_at(self.ledger.tree.follow(nodes, zxid), 0)

    def _look_at(self, step: TreeStep, session: int) -> None:
        try:
            self.fail_for(self.ledger.take(step, session))
        except SimulationFailed as error:
            self.world.loop.fail(error)  # not the keeper's concern

    def fail_for(self, found: list[Violation]) -> None:
        """End the run with the promises that are broken."""
        if found:
            lines = "\n".join(str(one)[:900] for one in found[:5])
            raise SimulationFailed(f"{len(found)} promises broken\n{lines}")


class ClusterTopic(Topic):
    """A topic whose name is never given to another."""

    __slots__ = ()

    def place(self, partition: int) -> Place:
        return (self.name, partition)
