"""Every decision of the cluster's controllers, checked when it is made.

The keeper of a simulation reports each transaction once it is durable. This finds what a periodic
view could miss: a second leader of an epoch (I-15), a leader from outside the ISR (I-14), a write
of a deposed controller (I-16), a broker that was trusted although it had lost data.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from millstream.testing.history.cluster_invariants import Excuses, Violation
from millstream.testing.history.cluster_tree import (
    BROKERS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    KNOWN_BROKERS,
    TOPIC_CONFIGS,
    TOPICS,
    UNCLEAN,
    NodeStep,
    TreeShadow,
    TreeStep,
    epoch_in,
    parse_state_path,
)
from millstream.testing.history.cluster_views import (
    NO_LEADER,
    CommittedPartition,
    LeaderClaim,
    PartitionKey,
)

_CONTROLLERS_ONLY = (TOPICS, TOPIC_CONFIGS, KNOWN_BROKERS)

STATES_PER_SECOND_MAX: Final = 40
"""Of one partition. Moves and a few elections need fewer; an ISR that flaps needs more."""

ELECTIONS = "elections"
UNCLEAN_ELECTIONS = "unclean elections"
ISR_SHRINKS = "isr shrinks"
ISR_GROWTHS = "isr growths"
CONTROLLER_CHANGES = "controller changes"
REGISTRATIONS = "registrations"
LOSSES = "replicas reported lost"


class LeaderLedger:
    """The leader of every partition in every epoch of the run (I-15)."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[PartitionKey, int], int] = {}
        self._decided: dict[tuple[PartitionKey, int], int] = {}
        """The zxid of each decision."""

    def note(
        self, key: PartitionKey, leader_epoch: int, leader: int, *, zxid: int | None = None
    ) -> Iterator[Violation]:
        first = self._leaders.setdefault((key, leader_epoch), leader)
        if first != leader:
            text = f"{key}: {first} and {leader} lead in epoch {leader_epoch}"
            yield Violation("I-15", text)
        if zxid is not None:
            self._decided.setdefault((key, leader_epoch), zxid)

    def note_claim(self, claim: LeaderClaim, *, broker_epoch: int) -> Iterator[Violation]:
        """I-15; and I-17, as an epoch is the zxid of a registration: what was decided before it
        was decided for another incarnation.
        """
        yield from self.note(claim.key, claim.leader_epoch, claim.broker)
        decided = self._decided.get((claim.key, claim.leader_epoch))
        if decided is not None and decided < broker_epoch:
            text = f"was decided at {decided}, before its epoch {broker_epoch}"
            yield Violation("I-17", f"{claim} {text}")


class ClusterLedger:
    """Checks each transaction of the keeper."""

    def __init__(
        self, excuses: Excuses, counts: Counter[str], now_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.tree = TreeShadow()
        self._now_s = now_s
        self._changed_s: dict[PartitionKey, deque[float]] = {}
        """When the state of each partition was written last."""
        self.leaders = LeaderLedger()
        self._excuses = excuses
        self._counts = counts
        self._broker_epochs: dict[int, int] = {}
        self._controller_session = 0
        """Of the last controller."""

    def take(self, step: TreeStep, controller_session: int) -> list[Violation]:
        """One transaction; `controller_session` owned `/controller` before it."""
        found: list[Violation] = []
        if controller_session:
            self._controller_session = controller_session
        # Where an operator deleted the node the last one may write until another is elected.
        sessions = {self._controller_session, self.tree.controller_session}
        for node in step.nodes:
            found += self._controllers_write(step, node, sessions)
            if parse_state_path(node.path) is not None:
                found += self._state(node, step)
            elif node.path == CONTROLLER_EPOCH and node.after is not None:
                self._counts[CONTROLLER_CHANGES] += 1
            elif node.path.startswith(BROKERS) and node.after is not None:
                found += self._registration(node)
            elif node.path.startswith(KNOWN_BROKERS) and node.after is not None:
                found += self._known_broker(node)
        return found

    def _controllers_write(
        self, step: TreeStep, node: NodeStep, sessions: set[int]
    ) -> Iterator[Violation]:
        """I-16: a node that only a controller writes is written by the current one."""
        if not step.session_id or not node.path.startswith(_CONTROLLERS_ONLY):
            return
        if step.session_id not in sessions or not any(sessions):
            text = f"{node.path} was written by session {step.session_id:x}"
            yield Violation("I-16", f"{text}, {CONTROLLER} belongs to {sorted(sessions)}")

    def _state(self, node: NodeStep, step: TreeStep) -> Iterator[Violation]:
        topic, index = parse_state_path(node.path) or ("", 0)
        if node.after is None:
            return
        now = self.tree.partition_in(topic, index, node.after)
        was = self.tree.partition_in(topic, index, node.before) if node.before else None
        if now is None:
            return
        if now.controller_epoch != self.tree.controller_epoch:
            text = f"controller epoch {now.controller_epoch}, not {self.tree.controller_epoch}"
            yield Violation("I-16", f"{now.key} was written with {text}")
        if now.leader != NO_LEADER:
            noted = self.leaders.note(now.key, now.leader_epoch, now.leader, zxid=step.zxid)
            yield from noted
        if was is None:
            return
        self._count(was, now)
        yield from self._pace(now)
        if step.session_id:
            yield from self._election(was, now, joining=_finished_move(step, now.key))

    def _count(self, was: CommittedPartition, now: CommittedPartition) -> None:
        self._counts[ELECTIONS] += now.leader_epoch > was.leader_epoch and now.leader != NO_LEADER
        self._counts[ISR_SHRINKS] += set(now.isr) < set(was.isr)
        self._counts[LOSSES] += len(set(now.lost) - set(was.lost))
        self._counts[ISR_GROWTHS] += set(now.isr) > set(was.isr)

    def _pace(self, now: CommittedPartition) -> Iterator[Violation]:
        """I-40: an ISR becomes stable, and does not flood the keeper until then."""
        now_s = self._now_s()
        changed = self._changed_s.setdefault(now.key, deque(maxlen=STATES_PER_SECOND_MAX))
        changed.append(now_s)
        if len(changed) == STATES_PER_SECOND_MAX and now_s - changed[0] < 1.0:
            yield Violation("I-40", f"{now.key} flaps, {len(changed)} states within 1 s: {now}")

    def _election(
        self, was: CommittedPartition, now: CommittedPartition, *, joining: set[int]
    ) -> Iterator[Violation]:
        """`joining` came into sync with this very change, as their leader reported."""
        if now.leader_epoch < was.leader_epoch:
            yield Violation("I-15", f"leader epoch went down: {was} to {now}")
        if now.leader in now.lost:
            yield Violation("I-14", f"{now.key}: its leader has lost its log: {now}")
        if now.leader == NO_LEADER or now.leader == was.leader:
            return
        if now.leader_epoch == was.leader_epoch:
            yield Violation("I-15", f"another leader in one epoch: {was} to {now}")
        if now.leader in was.holders or (now.leader in joining and was.leader in was.isr):
            return
        if not was.holders and now.leader == was.last_known_leader:
            self._counts["last known leaders elected"] += 1
            return
        self._counts[UNCLEAN_ELECTIONS] += 1
        self._excuses.unclean.add(now.key)
        if self.tree.config(now.key.topic).get(UNCLEAN) != "true":
            text = f"{now.leader} was elected from outside of {was.holders}"
            yield Violation("I-14", f"{now.key}: {text}: {was} to {now}")

    def _registration(self, node: NodeStep) -> Iterator[Violation]:
        """I-17"""
        broker = int(node.path.removeprefix(BROKERS))
        epoch = node.after.czxid if node.after is not None else -1
        if epoch < self._broker_epochs.get(broker, -1):
            yield Violation("I-17", f"broker {broker} came back with epoch {epoch}")
        self._counts[REGISTRATIONS] += epoch > self._broker_epochs.get(broker, -1)
        self._broker_epochs[broker] = epoch

    def _known_broker(self, node: NodeStep) -> Iterator[Violation]:
        """I-14: a broker that came back without proof of a clean stop is trusted nowhere."""
        broker = int(node.path.removeprefix(KNOWN_BROKERS))
        registration = self.tree.nodes.get(f"{BROKERS}{broker}")
        known = epoch_in(node.after.data) if node.after is not None else -1
        if registration is None or registration.czxid != known or node.before is None:
            return
        excuses = self._excuses
        is_whole = broker not in excuses.without_directory
        before = epoch_in(node.before.data)
        proof = json.loads(registration.data).get("previous_epoch", -1)
        if is_whole and known > excuses.wounded_at.get(broker, -1):
            excuses.wounded.discard(broker)
            if broker in excuses.emptied and before == proof:
                yield Violation("I-14", f"{broker} has lost a directory and proves a clean stop")
            excuses.emptied.discard(broker)
        if before in (known, proof):
            return
        self._counts["unclean registrations"] += 1
        for one in self.tree.committed().partitions.values():
            if broker in one.holders and one.isr != (broker,):
                text = f"{broker} came back without proof of a clean stop and is in {one}"
                yield Violation("I-14", text)


def _finished_move(step: TreeStep, key: PartitionKey) -> set[int]:
    """The replicas left after a move that this transaction ends: the last of them came into sync,
    and the removed ones are gone, the old leader among them.
    """
    for node in step.nodes:
        if node.path == f"{TOPICS}{key.topic}" and node.before is not None:
            before, index = json.loads(node.before.data), str(key.index)
            added = before.get("adding_replicas", {}).get(index, [])
            removed = before.get("removing_replicas", {}).get(index, [])
            if added or removed:
                return set(before["partitions"].get(index, ())) - set(removed)
    return set()
