"""Decisions of controllers that no correct one makes, each found when it is written."""

import json
from collections import Counter

from millstream.coordination.keeper.changes import (
    Change,
    CloseSession,
    CreateNode,
    DeleteNode,
    SetNode,
    Txn,
)
from millstream.coordination.keeper.state import Draft, State
from millstream.model.ids import SessionId, Zxid
from millstream.testing.history.cluster_invariants import Excuses
from millstream.testing.history.cluster_ledger import ClusterLedger
from millstream.testing.history.cluster_views import LeaderClaim, PartitionKey

CONTROLLER, OTHER = 100, 200
STATE = "/brokers/topics/t/partitions/0/state"


def create(path: str, data: bytes = b"", *, is_ephemeral: bool = False) -> CreateNode:
    return CreateNode(path, data, (), is_ephemeral)


def state(leader: int, epoch: int, isr: list[int], **more: object) -> bytes:
    fields = {"leader": leader, "leader_epoch": epoch, "isr": isr, "controller_epoch": 1, **more}
    return json.dumps(fields).encode()


class Book:
    """A ledger with a topic, three brokers and a controller."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.excuses = Excuses()
        self.ledger = ClusterLedger(self.excuses, self.counts)
        self._zxid = 0
        topic = {"topic_id": "id", "partitions": {"0": [1, 2, 3]}}
        assert not self.write(
            create("/controller", b'{"brokerid": 1}', is_ephemeral=True),
            create("/controller_epoch", b"1"),
        )
        assert not self.write(create("/brokers/topics/t", json.dumps(topic).encode()))
        assert not self.write(create("/config/topics/t", b'{"config":{"min.insync.replicas":"2"}}'))
        assert not self.write(create(STATE, state(1, 0, [1, 2])))

    def write(self, *changes: Change, session: int = CONTROLLER) -> list[str]:
        self._zxid += 1
        tree = self.ledger.tree
        before = tree.controller_session
        step = tree.apply(Txn(Zxid(self._zxid), 0, SessionId(session), changes))
        return [one.number for one in self.ledger.take(step, before)]

    def set(self, data: bytes, session: int = CONTROLLER) -> list[str]:
        return self.write(SetNode(STATE, data), session=session)


def test_a_good_election_is_counted() -> None:
    book = Book()
    assert book.set(state(2, 1, [2])) == []
    assert book.counts["elections"] == 1
    assert book.counts["isr shrinks"] == 1
    committed = book.ledger.tree.committed()
    (one,) = committed.partitions.values()
    assert one.key == PartitionKey("t", "id", 0)
    assert (one.leader, one.leader_epoch, one.isr, one.in_sync_min) == (2, 1, (2,), 2)
    assert one.partition_epoch == 1
    assert committed.controller == 1


def test_another_leader_in_the_same_epoch() -> None:
    """I-15"""
    assert "I-15" in Book().set(state(2, 0, [2]))


def test_a_leadership_that_was_decided_for_the_incarnation_before() -> None:
    """I-17"""
    book = Book()
    book.set(state(2, 1, [2]))
    decided = book.ledger.tree.zxid
    claim = LeaderClaim(2, PartitionKey("t", "id", 0), 1)

    def numbers(broker_epoch: int) -> list[str]:
        found = book.ledger.leaders.note_claim(claim, broker_epoch=broker_epoch)
        return [one.number for one in found]

    assert numbers(decided - 1) == []
    assert numbers(decided + 1) == ["I-17"]
    claim = claim._replace(broker=3)
    assert numbers(decided - 1) == ["I-15"]


def test_a_leader_epoch_that_goes_down() -> None:
    """I-15"""
    book = Book()
    book.set(state(2, 5, [2]))
    assert "I-15" in book.set(state(2, 4, [2]))


def test_a_leader_from_outside() -> None:
    """I-14"""
    book = Book()
    assert book.set(state(3, 1, [3])) == ["I-14"]
    assert book.counts["unclean elections"] == 1


def test_a_leader_from_outside_where_that_is_allowed() -> None:
    book = Book()
    book.write(SetNode("/config/topics/t", b'{"config":{"unclean.leader.election.enable":"true"}}'))
    assert book.set(state(3, 1, [3])) == []
    assert book.excuses.unclean == {PartitionKey("t", "id", 0)}


def test_a_leader_that_a_move_has_added() -> None:
    """The last new replica comes into sync, the move ends and the old leader goes, all in one."""
    book = Book()
    moving = {"topic_id": "id", "partitions": {"0": [4, 1, 2]}, "adding_replicas": {"0": [4]}}
    moved = {"topic_id": "id", "partitions": {"0": [4, 2]}}
    topic = "/brokers/topics/t"
    assert book.write(SetNode(topic, json.dumps(moving).encode())) == []
    end = SetNode(topic, json.dumps(moved).encode())
    assert book.write(end, SetNode(STATE, state(4, 1, [4, 2]))) == []
    assert book.write(SetNode(STATE, state(3, 2, [3]))) == ["I-14"]


def test_an_in_sync_set_that_flaps() -> None:
    """I-40"""
    book = Book()
    found = [book.set(state(1, 0, [1, 2] if turn % 2 else [1])) for turn in range(45)]
    assert found[10] == []
    assert found[-1] == ["I-40"]


def test_the_last_known_leader_may_come_back() -> None:
    book = Book()
    assert book.set(state(-1, 1, [], last_known_leader=3)) == []
    assert book.set(state(3, 2, [3])) == []


def test_every_change_of_a_node_in_a_transaction_counts() -> None:
    """The last one that was eligible came back without its memory, and the last leader leads."""
    book = Book()
    assert book.set(state(-1, 1, [], elr=[2], last_known_leader=3)) == []
    taken_out = SetNode(STATE, state(-1, 1, [], last_known_leader=3))
    elected = SetNode(STATE, state(3, 2, [3]))
    assert book.write(taken_out, elected) == []


def test_a_write_of_a_controller_that_is_none() -> None:
    """I-16"""
    assert Book().set(state(1, 0, [1]), session=OTHER) == ["I-16"]


def test_a_write_with_an_old_controller_epoch() -> None:
    """I-16"""
    book = Book()
    book.write(CloseSession())
    assert book.ledger.tree.controller_session == 0
    takeover = (
        create("/controller", b'{"brokerid": 2}', is_ephemeral=True),
        SetNode("/controller_epoch", b"2"),
    )
    assert book.write(*takeover, session=OTHER) == []
    assert book.counts["controller changes"] == 2
    assert book.set(state(1, 0, [1]), session=OTHER) == ["I-16"]
    assert book.set(state(1, 0, [1], controller_epoch=2), session=OTHER) == []
    assert book.set(state(1, 0, [1, 2], controller_epoch=2), session=CONTROLLER) == ["I-16"]


def registration(previous: int) -> bytes:
    return json.dumps({"previous_epoch": previous}).encode()


def test_a_broker_without_its_memory_that_stays_in_sync() -> None:
    """I-14, trap 15"""
    book = Book()
    mine = "/brokers/ids/2"
    book.write(create(mine, registration(-1), is_ephemeral=True), session=OTHER)
    first = book.ledger.tree.nodes[mine].czxid
    assert book.write(create("/millstream/brokers/2", json.dumps({"epoch": first}).encode())) == []
    assert book.ledger.tree.committed().is_registration_processed(2)
    book.write(CloseSession(), session=OTHER)
    book.excuses.wounded.add(2)
    book.write(create(mine, registration(-1), is_ephemeral=True), session=OTHER)
    second = book.ledger.tree.nodes[mine].czxid
    assert not book.ledger.tree.committed().is_registration_processed(2)
    known = SetNode("/millstream/brokers/2", json.dumps({"epoch": second}).encode())
    assert book.write(known) == ["I-14"]
    assert book.excuses.wounded == set()
    book.write(DeleteNode(mine), session=OTHER)
    book.write(create(mine, registration(second), is_ephemeral=True), session=OTHER)
    third = book.ledger.tree.nodes[mine].czxid
    proved = SetNode("/millstream/brokers/2", json.dumps({"epoch": third}).encode())
    assert book.write(proved) == []


def test_a_registration_without_the_lost_directory_or_before_the_harm_heals_nothing() -> None:
    book = Book()
    mine, noted = "/brokers/ids/2", "/millstream/brokers/2"

    def register() -> int:
        book.write(create(mine, registration(-1), is_ephemeral=True), session=OTHER)
        return book.ledger.tree.nodes[mine].czxid

    def deal_with(epoch: int) -> None:
        book.write(SetNode(noted, json.dumps({"epoch": epoch}).encode()))

    book.write(create(noted, json.dumps({"epoch": 0}).encode()))
    epoch = register()
    book.excuses.wounded.add(2)
    book.excuses.without_directory.add(2)
    deal_with(epoch)
    assert book.excuses.wounded == {2}
    book.excuses.without_directory.clear()
    book.excuses.wounded_at[2] = book.ledger.tree.zxid
    deal_with(epoch)
    assert book.excuses.wounded == {2}
    book.write(CloseSession(), session=OTHER)
    deal_with(register())
    assert book.excuses.wounded == set()


def test_a_proof_of_a_broker_whose_disk_was_replaced() -> None:
    """I-14: what it had under that epoch is not all there any more."""
    book = Book()
    mine, noted = "/brokers/ids/2", "/millstream/brokers/2"
    book.write(create(noted, json.dumps({"epoch": 1}).encode()))
    book.excuses.emptied.add(2)
    book.write(create(mine, registration(1), is_ephemeral=True), session=OTHER)
    epoch = book.ledger.tree.nodes[mine].czxid
    assert book.write(SetNode(noted, json.dumps({"epoch": epoch}).encode())) == ["I-14"]
    assert book.excuses.emptied == set()


def test_what_a_keeper_has_that_came_back() -> None:
    """Changes that were never reported are checked, too."""
    book, keeper = Book(), State()
    keeper.nodes.update(State().nodes)
    draft = Draft(keeper, time_ms=0, session_id=SessionId(0))
    draft.add(create("/controller_epoch", b"7"))
    draft.commit()
    step = book.ledger.tree.follow(keeper.nodes, keeper.last_zxid)
    assert book.ledger.tree.controller_epoch == 7
    assert "/controller_epoch" in [node.path for node in step.nodes]
    assert book.ledger.take(step, 0) == []
    assert STATE not in book.ledger.tree.nodes
