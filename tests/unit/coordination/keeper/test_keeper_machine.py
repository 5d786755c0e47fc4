"""The keeper's decisions, one frame at a time: what the contract suite cannot see from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.coordination.keeper_kit import Bench, acl, create_with_acl, set_watches
from millstream.coordination import port
from millstream.coordination.keeper import limits, machine, writes
from millstream.coordination.keeper.jute import JuteReader, pack_integer, pack_text
from millstream.coordination.keeper.protocol import Code, Event, Op
from millstream.coordination.keeper.sessions import SessionRules
from millstream.coordination.keeper.snapshots import encode_snapshot
from millstream.coordination.keeper.state import State, as_int, next_version
from millstream.coordination.keeper.watches import ConnectionId
from millstream.coordination.port import NodeKind
from millstream.model.ids import SessionId, Zxid
from millstream.testing.sim import keeper_requests as wire

ONE, TWO, THREE = 1, 2, 3


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.connect(ONE)
    made.connect(TWO)
    return made


# -- sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested_ms", "granted_ms"), [(1, 1000), (6000, 6000), (60_000, 10_000), (-5, 1000)]
)
def test_time_outs_are_between_2_and_20_ticks(requested_ms: int, granted_ms: int) -> None:
    greeting = Bench().connect(ONE, timeout_ms=requested_ms)
    assert greeting is not None
    assert greeting.timeout_ms == granted_ms
    assert greeting.has_read_only


def test_time_outs_may_have_limits_of_their_own() -> None:
    rules = SessionRules(tick_ms=500, timeout_min_ms=50, timeout_max_ms=100)
    assert [rules.granted_ms(asked) for asked in (1, 70, 500)] == [50, 70, 100]


def test_a_session_expires_at_the_tick_after_its_time_and_every_word_counts(bench: Bench) -> None:
    bench.create(ONE, "/e", kind=NodeKind.EPHEMERAL)
    bench.advance(5_000)
    bench.request(ONE, Op.PING)
    bench.advance(1_500)
    assert bench.dropped == {TWO: "session expired"}
    bench.advance(4_500)
    assert ONE not in bench.dropped
    assert "/e" in bench.machine.state.nodes
    bench.advance(500)
    assert bench.dropped[ONE] == "session expired"
    assert "/e" not in bench.machine.state.nodes
    assert not bench.machine.state.sessions


def test_a_client_comes_back_on_another_connection_and_the_old_one_is_closed(
    bench: Bench,
) -> None:
    greeting = bench.connect(THREE)
    assert greeting is not None
    bench.request(THREE, Op.EXISTS, wire.watched("/w", watch=True))
    again = bench.connect(4, session_id=greeting.session_id, password=greeting.password)
    assert again == greeting
    assert bench.dropped == {THREE: "the session moved to another connection"}
    bench.create(ONE, "/w")
    assert bench.events(THREE) == bench.events(4) == []  # watches went with their connection
    bench.machine.disconnected(ConnectionId(THREE))
    assert bench.request(4, Op.PING).code == Code.OK


def test_without_its_password_a_session_is_not_given_away(bench: Bench) -> None:
    greeting = bench.connect(THREE)
    assert greeting is not None
    refused = bench.connect(4, session_id=greeting.session_id, password=bytes(16))
    assert refused is not None
    assert (refused.timeout_ms, refused.session_id, refused.password) == (0, 0, bytes(16))
    assert 4 in bench.dropped
    assert THREE not in bench.dropped


def test_an_unknown_session_is_told_that_it_expired(bench: Bench) -> None:
    refused = bench.connect(THREE, session_id=SessionId(123), password=b"x" * 16)
    assert refused is not None
    assert refused.timeout_ms == 0


def test_a_client_from_the_future_is_sent_away(bench: Bench) -> None:
    """It has seen changes that this server lost, or belongs to another one."""
    assert bench.connect(THREE, last_zxid=Zxid(1000)) is None
    assert THREE in bench.dropped


def test_session_ids_are_never_given_twice_also_after_a_restart(bench: Bench) -> None:
    seen = {greeting.session_id for one in range(10, 20) if (greeting := bench.connect(one))}
    for one in range(10, 20):
        bench.request(one, Op.CLOSE_SESSION)
    state = State()
    for txn in bench.txns:
        state.replay(txn)
    again = Bench(state, seed=2).connect(ONE)
    assert again is not None
    assert again.session_id not in seen
    assert len(seen) == 10


def test_the_number_of_sessions_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SESSIONS_MAX", 3)
    assert bench.connect(THREE) is not None
    assert bench.connect(4, credentials=None) is not None, "it is not open yet"
    assert bench.prove(4).code == Code.QUOTA_EXCEEDED
    assert bench.dropped == {4: "too many sessions"}
    bench.machine.disconnected(ConnectionId(4))
    assert len(bench.machine.state.sessions) == 3


def test_closing_answers_then_hangs_up(bench: Bench) -> None:
    bench.create(ONE, "/e", kind=NodeKind.EPHEMERAL)
    assert bench.request(ONE, Op.CLOSE_SESSION).code == Code.OK
    assert bench.dropped == {ONE: "closed by the client"}
    assert "/e" not in bench.machine.state.nodes


# -- watches -----------------------------------------------------------------------------------


def test_a_plain_watch_is_told_once(bench: Bench) -> None:
    bench.create(ONE, "/w")
    bench.request(ONE, Op.GET_DATA, wire.watched("/w", watch=True))
    for number in range(3):
        bench.request(TWO, Op.SET_DATA, wire.set_data("/w", b"x", number))
    assert bench.events(ONE) == [(Event.CHANGED, "/w")]


def test_the_event_of_an_own_change_comes_before_its_answer(bench: Bench) -> None:
    bench.create(ONE, "/w")
    bench.request(ONE, Op.GET_DATA, wire.watched("/w", watch=True))
    answer = bench.request(ONE, Op.SET_DATA, wire.set_data("/w", b"x", 0))
    assert answer.code == Code.OK  # the last frame
    assert bench.events(ONE) == [(Event.CHANGED, "/w")]


def test_persistent_watches_stay_and_recursive_ones_see_below(bench: Bench) -> None:
    bench.create(ONE, "/p")
    bench.request(ONE, Op.ADD_WATCH, pack_text("/p") + pack_integer(0))
    bench.request(TWO, Op.ADD_WATCH, pack_text("/p") + pack_integer(1))
    bench.create(ONE, "/p/c")
    bench.request(ONE, Op.SET_DATA, wire.set_data("/p/c", b"", 0))
    bench.request(ONE, Op.SET_DATA, wire.set_data("/p", b"", 0))
    bench.request(ONE, Op.DELETE, wire.versioned("/p/c", -1))
    bench.request(ONE, Op.DELETE, wire.versioned("/p", -1))
    assert bench.events(ONE) == [
        (Event.CHILDREN, "/p"),
        (Event.CHANGED, "/p"),
        (Event.CHILDREN, "/p"),
        (Event.DELETED, "/p"),
    ]
    assert bench.events(TWO) == [
        (Event.CREATED, "/p/c"),
        (Event.CHANGED, "/p/c"),
        (Event.CHANGED, "/p"),
        (Event.DELETED, "/p/c"),
        (Event.DELETED, "/p"),
    ]


def test_watches_can_be_looked_for_and_removed(bench: Bench) -> None:
    bench.create(ONE, "/w")
    data, children = pack_text("/w") + pack_integer(2), pack_text("/w") + pack_integer(1)
    assert bench.request(ONE, Op.CHECK_WATCHES, data).code == Code.NO_WATCHER
    bench.request(ONE, Op.GET_DATA, wire.watched("/w", watch=True))
    assert bench.request(ONE, Op.CHECK_WATCHES, data).code == Code.OK
    assert bench.request(ONE, Op.REMOVE_WATCHES, children).code == Code.NO_WATCHER
    assert bench.request(ONE, Op.REMOVE_WATCHES, data).code == Code.OK
    bench.request(TWO, Op.SET_DATA, wire.set_data("/w", b"", 0))
    assert bench.events(ONE) == []


@pytest.mark.parametrize("op", [Op.SET_WATCHES, Op.SET_WATCHES2])
def test_a_client_that_came_back_learns_what_it_missed(bench: Bench, op: Op) -> None:
    for path in ("/same", "/changed", "/gone", "/parent", "/still"):
        bench.create(ONE, path)
    since = bench.machine.state.last_zxid
    bench.request(ONE, Op.SET_DATA, wire.set_data("/changed", b"", 0))
    bench.request(ONE, Op.DELETE, wire.versioned("/gone", 0))
    bench.create(ONE, "/new")
    bench.create(ONE, "/parent/c")
    lists = [["/same", "/changed", "/gone"], ["/new", "/later"], ["/parent", "/still", "/gone"]]
    if op == Op.SET_WATCHES2:
        lists += [["/same"], ["/"]]
    assert bench.request(TWO, op, set_watches(since, *lists)).code == Code.OK
    assert bench.events(TWO) == [
        (Event.CHANGED, "/changed"),
        (Event.DELETED, "/gone"),
        (Event.CREATED, "/new"),
        (Event.CHILDREN, "/parent"),
        (Event.DELETED, "/gone"),
    ]
    bench.create(ONE, "/later")
    bench.create(ONE, "/still/c")
    expected = [(Event.CREATED, "/later"), (Event.CHILDREN, "/still")]
    if op == Op.SET_WATCHES2:
        expected.insert(1, (Event.CREATED, "/still/c"))
    assert bench.events(TWO) == expected


def test_watches_of_one_connection_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "WATCHES_PER_CONNECTION_MAX", 10)
    for number in range(11):
        bench.request(ONE, Op.EXISTS, wire.watched(f"/{number}", watch=True))
    assert bench.dropped == {ONE: "too many watches"}


def test_nothing_is_left_of_a_connection_that_went_away(bench: Bench) -> None:
    for op, mode in ((Op.GET_DATA, b""), (Op.GET_CHILDREN, b"")):
        bench.request(ONE, op, wire.watched("/", watch=True) + mode)
    bench.request(ONE, Op.ADD_WATCH, pack_text("/") + pack_integer(1))
    bench.machine.disconnected(ConnectionId(ONE))
    for table in (bench.machine.watches.data, bench.machine.watches.children):
        assert not table.by_path
        assert not table.by_connection
        assert table.recursive_count == 0


# -- nodes -------------------------------------------------------------------------------------


def test_what_is_there_from_the_start_stays(bench: Bench) -> None:
    for path in ("/", "/zookeeper", "/zookeeper/quota"):
        answer = bench.request(ONE, Op.DELETE, wire.versioned(path, -1))
        assert answer.code == Code.BAD_ARGUMENTS
    names = JuteReader(bench.request(ONE, Op.GET_CHILDREN, wire.watched("/", watch=False)).body)
    assert names.texts() == ["zookeeper"]


def test_access_lists_for_everybody_are_kept_to(bench: Bench) -> None:
    read_only = create_with_acl("/r", acl(1))
    assert bench.request(ONE, Op.CREATE, read_only).code == Code.OK
    assert bench.request(ONE, Op.GET_DATA, wire.watched("/r", watch=False)).code == Code.OK
    assert bench.request(ONE, Op.SET_DATA, wire.set_data("/r", b"", -1)).code == Code.NO_AUTH
    assert bench.create(ONE, "/r/c").code == Code.NO_AUTH
    assert bench.request(ONE, Op.SET_ACL, pack_text("/r") + acl(31) + pack_integer(-1)).code == (
        Code.NO_AUTH
    )
    answer = bench.request(ONE, Op.GET_ACL, pack_text("/r"))
    assert answer.body.startswith(acl(1))


@pytest.mark.parametrize(
    "acls",
    [
        acl(31, "digest", "no-colon"),
        acl(31, "world", "me"),
        acl(31, "ip", "127.0.0.1"),
        acl(31, "sasl", "me"),
        acl(31, "", ""),
        pack_integer(0),
    ],
)
def test_access_lists_that_would_not_be_kept_to_are_refused(bench: Bench, acls: bytes) -> None:
    assert bench.request(ONE, Op.CREATE, create_with_acl("/r", acls)).code == Code.INVALID_ACL


def test_an_access_list_is_changed_by_its_own_version(bench: Bench) -> None:
    bench.create(ONE, "/a")
    change = pack_text("/a") + acl(17)
    assert bench.request(ONE, Op.SET_ACL, change + pack_integer(1)).code == Code.BAD_VERSION
    answer = bench.request(ONE, Op.SET_ACL, change + pack_integer(0))
    stat = wire.read_stat(JuteReader(answer.body))
    assert (stat.acl_version, stat.version) == (1, 0)


@pytest.mark.parametrize(
    ("scheme", "code"),
    [("digest", Code.OK), ("ip", Code.AUTH_FAILED), ("sasl", Code.AUTH_FAILED)],
)
def test_further_identities(bench: Bench, scheme: str, code: Code) -> None:
    packet = pack_integer(0) + pack_text(scheme) + pack_text("me:secret")
    assert bench.request(ONE, Op.AUTH, packet, xid=-4)[::2] == (-4, code)
    assert (ONE in bench.dropped) is (code != Code.OK)


def test_what_the_server_cannot_do_it_says(bench: Bench) -> None:
    for op in (16, 19, 21, 999):
        assert bench.request(ONE, op).code == Code.UNIMPLEMENTED
    flags = wire.create("/a", b"", NodeKind.PERSISTENT)[:-4] + pack_integer(4)
    assert bench.request(ONE, Op.CREATE, flags).code == Code.BAD_ARGUMENTS


def test_the_data_of_all_nodes_together_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "DATA_BYTES_MAX", bench.machine.state.size_bytes + 2000)
    assert bench.create(ONE, "/a", bytes(1000)).code == Code.OK
    before = encode_snapshot(bench.machine.state)
    assert bench.create(ONE, "/b", bytes(1000)).code == Code.QUOTA_EXCEEDED
    grown = wire.set_data("/a", bytes(3000), -1)
    assert bench.request(ONE, Op.SET_DATA, grown).code == Code.QUOTA_EXCEEDED
    assert encode_snapshot(bench.machine.state) == before
    assert bench.request(ONE, Op.SET_DATA, wire.set_data("/a", b"", -1)).code == Code.OK
    assert bench.request(ONE, Op.DELETE, wire.versioned("/a", -1)).code == Code.OK


def test_ephemerals_and_descendants_are_listed(bench: Bench) -> None:
    bench.create(ONE, "/a")
    bench.create(ONE, "/a/e", kind=NodeKind.EPHEMERAL)
    bench.create(TWO, "/a/f", kind=NodeKind.EPHEMERAL)
    listed = bench.request(ONE, Op.GET_EPHEMERALS, pack_text("/"))
    assert JuteReader(listed.body).texts() == ["/a/e"]
    counted = bench.request(ONE, Op.GET_ALL_CHILDREN_NUMBER, pack_text("/a"))
    assert JuteReader(counted.body).integer() == 2


def test_versions_overflow_as_javas_and_are_never_minus_one() -> None:
    assert next_version(2**31 - 1) == -(2**31)
    assert next_version(-2) == 0
    assert as_int(2**31) == -(2**31)
    assert as_int(-(2**31) - 1) == 2**31 - 1


def test_every_change_has_a_zxid_of_its_own_and_refusals_have_none(bench: Bench) -> None:
    before = bench.machine.state.last_zxid
    bench.create(ONE, "/a")
    assert bench.create(ONE, "/a").code == Code.NODE_EXISTS
    answer = bench.request(ONE, Op.SET_DATA, wire.set_data("/a", b"", 0))
    assert answer.zxid == before + 2
    assert [txn.zxid for txn in bench.txns] == list(range(1, before + 3))


# -- bad input ---------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_no_bytes_upset_the_machine(data: bytes) -> None:
    """I-34. Hung up, an error code, or an answer; the state stays what the log says."""
    bench = Bench()
    bench.give(THREE, data)
    bench.connect(ONE)
    bench.give(ONE, data)
    for op in (*Op, 999):
        if ONE not in bench.dropped:
            bench.give(ONE, pack_integer(7) + pack_integer(op) + data)
    state = State()
    for txn in bench.txns:
        state.replay(txn)
    assert encode_snapshot(state) == encode_snapshot(bench.machine.state)


NAMES = st.sampled_from(["/a", "/b", "/a/c", "/a/c/d", "/e", "/zookeeper", "/"])


@given(st.data())
def test_the_log_always_gives_the_same_state(data: st.DataObject) -> None:
    """Random requests of two sessions, multis that fail in the middle included."""
    bench = Bench()
    bench.connect(ONE)
    bench.connect(TWO)
    kinds = st.sampled_from(list(NodeKind))
    versions = st.sampled_from([-1, 0, 1])
    for _ in range(data.draw(st.integers(0, 12))):
        connection = data.draw(st.sampled_from([ONE, TWO]))
        operations: list[port.Operation] = []
        for _ in range(data.draw(st.integers(1, 4))):
            path = data.draw(NAMES)
            match data.draw(st.integers(0, 3)):
                case 0:
                    operations.append(port.Create(path=path, kind=data.draw(kinds)))
                case 1:
                    version = data.draw(versions)
                    operations.append(port.Set(path=path, data=b"x", version=version))
                case 2:
                    operations.append(port.Delete(path=path, version=data.draw(versions)))
                case _:
                    operations.append(port.Check(path=path, version=data.draw(versions)))
        bench.request(connection, Op.MULTI, wire.multi(operations))
    bench.request(ONE, Op.CLOSE_SESSION)
    state = State()
    for txn in bench.txns:
        state.replay(txn)
    live = bench.machine.state
    assert encode_snapshot(state) == encode_snapshot(live)
    assert (state.ephemerals, state.size_bytes) == (live.ephemerals, live.size_bytes)
    for path, node in live.nodes.items():
        below = {name for name in live.nodes if name.rpartition("/")[0] == path.rstrip("/")}
        assert {name.rpartition("/")[2] for name in below if name != "/"} == node.children


def test_limits_fit_each_other() -> None:
    assert limits.LOG_ROLL_BYTES > limits.FRAME_BYTES_MAX
