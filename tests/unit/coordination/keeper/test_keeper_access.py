"""Who may do what: the cluster's secret before everything else, then each node's access list."""

import sys
from types import FrameType

import pytest

from kits.coordination.coordination_kit import CREDENTIALS
from kits.coordination.keeper_kit import Bench, acl, create_with_acl
from millstream.coordination import errors, port
from millstream.coordination.credentials import Credentials, digest_identity
from millstream.coordination.keeper import machine as machine_module
from millstream.coordination.keeper import writes as writes_module
from millstream.coordination.keeper.access import (
    Identity,
    check_allowed,
    checked_acl,
    cluster_acl,
    shown_acl,
    upgrades,
)
from millstream.coordination.keeper.changes import SetNodeAcl
from millstream.coordination.keeper.jute import JuteReader, pack_integer, pack_long, pack_text
from millstream.coordination.keeper.limits import (
    ACL_ENTRIES_MAX,
    ACL_ENTRY_BYTES,
    ACL_IDENTITY_CHARACTERS_MAX,
    ACLS_SHARED_MAX,
    IDENTITIES_PER_CONNECTION_MAX,
)
from millstream.coordination.keeper.protocol import Code, KeeperError, Op, Permission
from millstream.coordination.keeper.requests import Acl
from millstream.coordination.keeper.snapshots import decode_snapshot, encode_snapshot
from millstream.coordination.keeper.state import OPEN_ACL, Draft, Node, State, size_of
from millstream.coordination.keeper.watches import ConnectionId
from millstream.coordination.port import ANY_VERSION, NodeKind
from millstream.model.ids import NO_SESSION, SessionId
from millstream.observe.redaction import Secret
from millstream.testing.sim import keeper_requests as wire

MEMBER, GUEST, OTHER = 1, 2, 3
ME, YOU = Identity("digest", "me:hash"), Identity("digest", "you:hash")
READ, WRITE, ADMIN = Permission.READ, Permission.WRITE, Permission.ADMIN
WRONG = Credentials(Secret("the-secret-of-another-cluster"))


@pytest.fixture
def bench() -> Bench:
    """A member of the cluster with a node, and a guest without the secret."""
    made = Bench()
    assert made.connect(MEMBER) is not None
    made.create(MEMBER, "/a", b"data")
    assert made.connect(GUEST, credentials=None) is not None
    return made


# -- access lists ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "identities", "wanted", "is_allowed"),
    [
        ([Acl(1, "world", "anyone")], (), [READ], True),
        ([Acl(1, "world", "anyone")], (ME,), [WRITE], False),
        ([Acl(1, "world", "anyone")], (ME,), [READ, ADMIN], True),
        ([Acl(31, *ME)], (ME,), [ADMIN], True),
        ([Acl(31, *ME)], (YOU, ME), [WRITE], True),
        ([Acl(31, *ME)], (YOU,), [READ], False),
        ([Acl(31, *ME)], (), [READ], False),
        ([Acl(1, *ME), Acl(2, *YOU)], (ME,), [WRITE], False),
        ([Acl(1, *ME), Acl(2, *YOU)], (ME, YOU), [WRITE], True),
        ([Acl(31, "world", "me:hash")], (ME,), [READ], False),
        ([], (ME,), [READ], False),
    ],
)
def test_a_list_gives_what_it_names(
    entries: list[Acl],
    identities: tuple[Identity, ...],
    wanted: list[Permission],
    *,
    is_allowed: bool,
) -> None:
    node = Node(b"", tuple(entries))
    if is_allowed:
        check_allowed(node, identities, *wanted)
    else:
        with pytest.raises(KeeperError) as refused:
            check_allowed(node, identities, *wanted)
        assert refused.value.code == Code.NO_AUTH


def test_the_creator_is_who_it_has_proved_to_be() -> None:
    both = checked_acl([Acl(31, "auth", ""), Acl(31, *ME), Acl(1, "world", "anyone")], (ME, YOU))
    assert both == (Acl(31, *ME), Acl(31, *YOU), Acl(1, "world", "anyone"))
    with pytest.raises(KeeperError) as refused:
        checked_acl([Acl(31, "auth", "")], ())
    assert refused.value.code == Code.INVALID_ACL


def test_hashes_are_shown_to_who_may_change_the_list() -> None:
    node = Node(b"", (Acl(31, *ME), Acl(1, *YOU)))
    assert shown_acl(node, (ME,)) == node.acl
    assert shown_acl(node, (YOU,)) == (Acl(31, "digest", "me:x"), Acl(1, "digest", "you:x"))


def test_an_identity_is_computed_as_zookeeper_does() -> None:
    """`DigestAuthenticationProvider super:admin` of ZooKeeper prints this."""
    assert digest_identity(b"super:admin") == "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="


# -- without the secret ------------------------------------------------------------------------

_EVERYTHING = [
    (Op.CREATE, wire.create("/new", b"", NodeKind.PERSISTENT)),
    (Op.CREATE2, wire.create("/new", b"", NodeKind.EPHEMERAL)),
    (Op.DELETE, wire.versioned("/a", ANY_VERSION)),
    (Op.EXISTS, wire.watched("/a", watch=True)),
    (Op.GET_DATA, wire.watched("/a", watch=True)),
    (Op.SET_DATA, wire.set_data("/a", b"", ANY_VERSION)),
    (Op.GET_ACL, pack_text("/a")),
    (Op.SET_ACL, pack_text("/a") + acl(31) + pack_integer(-1)),
    (Op.GET_CHILDREN, wire.watched("/", watch=True)),
    (Op.GET_CHILDREN2, wire.watched("/", watch=False)),
    (Op.SYNC, pack_text("/a")),
    (Op.CHECK, wire.versioned("/a", 0)),
    (Op.MULTI, wire.multi([])),
    (Op.MULTI_READ, wire.multi([])),
    (Op.CHECK_WATCHES, wire.versioned("/a", 1)),
    (Op.REMOVE_WATCHES, wire.versioned("/a", 1)),
    (Op.SET_WATCHES, pack_long(0) + pack_integer(0) * 3),
    (Op.SET_WATCHES2, pack_long(0) + pack_integer(0) * 5),
    (Op.ADD_WATCH, wire.versioned("/a", 1)),
    (Op.GET_EPHEMERALS, pack_text("/")),
    (Op.GET_ALL_CHILDREN_NUMBER, pack_text("/")),
    (Op.WHO_AM_I, b""),
    (999, b""),
]


@pytest.mark.parametrize(("op", "body"), _EVERYTHING)
def test_without_the_secret_nothing_is_read_changed_or_watched(
    bench: Bench, op: int, body: bytes
) -> None:
    logged = len(bench.txns)
    answer = bench.request(GUEST, op, body)
    assert (answer.code, answer.body) == (Code.NO_AUTH, b"")
    assert len(bench.txns) == logged
    assert bench.machine.watches.total == 0
    assert bench.warnings == [(GUEST, "a request without the cluster's secret")]


def test_every_operation_is_in_that_table() -> None:
    without = {Op.PING, Op.AUTH, Op.SASL, Op.CLOSE_SESSION}
    assert {op for op, _ in _EVERYTHING} >= set(Op) - without


def test_a_guest_leaves_nothing_behind(bench: Bench) -> None:
    """Its session is neither in the log nor known when it comes back."""
    logged, sessions = len(bench.txns), dict(bench.machine.state.sessions)
    guest = bench.connect(OTHER, credentials=None)
    assert guest is not None
    assert bench.request(OTHER, Op.PING, xid=-2).code == Code.OK
    bench.machine.disconnected(ConnectionId(OTHER))
    again = bench.connect(4, session_id=guest.session_id, password=guest.password)
    assert again is not None
    assert again.timeout_ms == 0, "it is gone"
    assert bench.request(GUEST, Op.CLOSE_SESSION).code == Code.OK
    bench.advance(60_000)
    assert len(bench.txns) == logged + 1, "the member's end"
    assert set(sessions) == {one.session_id for one in bench.txns[-1:]}


def test_a_session_is_open_when_the_secret_is_proved(bench: Bench) -> None:
    logged = len(bench.txns)
    assert bench.prove(GUEST).code == Code.OK
    assert len(bench.txns) == logged + 1
    assert bench.request(GUEST, Op.GET_DATA, wire.watched("/a", watch=False)).code == Code.OK
    assert bench.prove(GUEST).code == Code.OK, "once more, as a client may"
    assert len(bench.txns) == logged + 1


def test_a_wrong_secret_ends_the_connection(bench: Bench) -> None:
    assert bench.prove(GUEST, WRONG).code == Code.AUTH_FAILED
    assert bench.dropped == {GUEST: "a wrong secret"}
    assert bench.warnings == [(GUEST, "a wrong secret")]


def test_the_user_is_part_of_the_secret(bench: Bench) -> None:
    packet = pack_integer(0) + pack_text("digest")
    secret = CREDENTIALS.secret.reveal()
    for text in (
        f"root:{secret}",
        secret,
        "",
        f"millstream:{secret}x",
        f"millstream:{secret[:-1]}",
    ):
        assert bench.connect(OTHER, credentials=None) is not None
        answer = bench.request(OTHER, Op.AUTH, packet + pack_text(text), xid=-4)
        assert answer.code == Code.AUTH_FAILED, text
        bench.machine.disconnected(ConnectionId(OTHER))


def test_a_proof_that_cannot_be_read_ends_the_connection(bench: Bench) -> None:
    bench.give(GUEST, pack_integer(-4) + pack_integer(Op.AUTH) + b"\0\0")
    assert GUEST in bench.dropped
    assert bench.sent[GUEST] == []


def before_the_upgrade() -> tuple[Bench, SessionId, bytes]:
    """A keeper that has just found a session with its node: its client may have no secret."""
    old = Bench()
    greeting = old.connect(MEMBER)
    assert greeting is not None
    assert old.create(MEMBER, "/e", kind=NodeKind.EPHEMERAL).code == Code.OK
    return Bench(old.machine.state), greeting.session_id, greeting.password


def test_a_session_lives_on_only_if_its_client_proves_the_secret() -> None:
    bench, session_id, password = before_the_upgrade()
    for number in range(20):
        connection = GUEST + number // 3
        if number % 3 == 0:
            bench.connect(connection, session_id=session_id, password=password, credentials=None)
        if session_id in bench.machine.state.sessions:
            bench.request(connection, Op.PING, xid=-2)
        bench.advance(1000)
    assert session_id not in bench.machine.state.sessions
    assert "/e" not in bench.machine.state.nodes


def test_a_session_is_not_closed_without_the_secret() -> None:
    bench, session_id, password = before_the_upgrade()
    bench.connect(GUEST, session_id=session_id, password=password, credentials=None)
    assert bench.request(GUEST, Op.CLOSE_SESSION).code == Code.NO_AUTH
    assert "/e" in bench.machine.state.nodes
    assert bench.prove(GUEST).code == Code.OK
    assert bench.request(GUEST, Op.CLOSE_SESSION).code == Code.OK
    assert "/e" not in bench.machine.state.nodes


def test_a_proof_gives_a_resumed_session_its_whole_time() -> None:
    bench, session_id, password = before_the_upgrade()
    bench.advance(5000)
    assert bench.connect(MEMBER, session_id=session_id, password=password) is not None
    bench.advance(5000)
    assert session_id in bench.machine.state.sessions


def test_a_session_is_not_resumed_without_its_password(bench: Bench) -> None:
    """The secret alone is not enough: another broker's session is not one's own."""
    member = bench.connect(OTHER)
    assert member is not None
    stolen = bench.connect(4, session_id=member.session_id, password=bytes(16), credentials=None)
    assert stolen is not None
    assert stolen.timeout_ms == 0
    resumed = bench.connect(
        5, session_id=member.session_id, password=member.password, credentials=None
    )
    assert resumed is not None
    assert resumed.session_id == member.session_id
    assert bench.request(5, Op.GET_DATA, wire.watched("/a", watch=False)).code == Code.NO_AUTH
    assert bench.prove(5).code == Code.OK
    assert bench.request(5, Op.GET_DATA, wire.watched("/a", watch=False)).code == Code.OK


def test_who_goes_on_without_the_secret_is_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "REFUSED_REQUESTS_MAX", 3)
    for _ in range(2):
        assert bench.create(GUEST, "/new").code == Code.NO_AUTH
    assert bench.dropped == {}
    assert bench.create(GUEST, "/new").code == Code.NO_AUTH
    assert bench.dropped == {GUEST: "too many requests without the secret"}
    assert len(bench.warnings) == 1


# -- with it -----------------------------------------------------------------------------------


def test_a_node_may_be_for_another_identity_too(bench: Bench) -> None:
    own = acl(31, "digest", digest_identity(b"me:password"))
    assert bench.request(MEMBER, Op.CREATE, create_with_acl("/mine", own)).code == Code.OK
    read = wire.watched("/mine", watch=False)
    assert bench.request(MEMBER, Op.GET_DATA, read).code == Code.NO_AUTH
    assert bench.request(MEMBER, Op.GET_ACL, pack_text("/mine")).code == Code.NO_AUTH
    packet = pack_integer(0) + pack_text("digest") + pack_text("me:password")
    assert bench.request(MEMBER, Op.AUTH, packet, xid=-4).code == Code.OK
    assert bench.request(MEMBER, Op.GET_DATA, read).code == Code.OK
    assert bench.request(MEMBER, Op.GET_ACL, pack_text("/mine")).body.startswith(own)
    names = JuteReader(bench.request(MEMBER, Op.WHO_AM_I).body)
    assert [names.integer(), *(names.text() for _ in range(4))] == [
        2,
        "digest",
        "millstream",
        "digest",
        "me",
    ]


def test_the_number_of_identities_is_bounded(bench: Bench) -> None:
    for number in range(IDENTITIES_PER_CONNECTION_MAX):
        packet = pack_integer(0) + pack_text("digest") + pack_text(f"{number}:password")
        code = bench.request(MEMBER, Op.AUTH, packet, xid=-4).code
    assert code == Code.AUTH_FAILED
    assert MEMBER in bench.dropped


def test_delete_is_a_right_on_the_parent_and_a_multi_is_refused_as_a_whole(bench: Bench) -> None:
    closed = acl(31 & ~Permission.DELETE)
    bench.request(MEMBER, Op.CREATE, create_with_acl("/p", closed))
    bench.create(MEMBER, "/p/c")
    answer = bench.request(MEMBER, Op.DELETE, wire.versioned("/p/c", ANY_VERSION))
    assert answer.code == Code.NO_AUTH
    operations: list[port.Operation] = [
        port.Set(path="/a", data=b"new", version=0),
        port.Delete(path="/p/c", version=ANY_VERSION),
    ]
    body = bench.request(MEMBER, Op.MULTI, wire.multi(operations)).body
    with pytest.raises(errors.MultiFailed) as failed:
        wire.read_multi(JuteReader(body), operations)
    assert isinstance(failed.value.cause, errors.NotAllowed)
    assert bench.machine.state.nodes["/a"].data == b"data"


def test_ephemeral_nodes_of_one_session_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "EPHEMERALS_PER_SESSION_MAX", 2)
    codes = [
        bench.create(MEMBER, f"/e{number}", kind=NodeKind.EPHEMERAL).code for number in range(3)
    ]
    assert codes == [Code.OK, Code.OK, Code.QUOTA_EXCEEDED]
    assert bench.create(MEMBER, "/persistent").code == Code.OK


def test_sessions_and_watches_of_one_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "SESSIONS_PER_ADDRESS_MAX", 2)
    monkeypatch.setattr(machine_module, "WATCHES_PER_ADDRESS_MAX", 3)
    bench = Bench()
    for connection, address in ((1, "here"), (2, "here"), (3, "here"), (4, "there")):
        bench.machine.connected(ConnectionId(connection), address)
        assert bench.connect(connection, credentials=None) is not None
    codes = [bench.prove(connection).code for connection in (1, 2, 3, 4)]
    assert codes == [Code.OK, Code.OK, Code.QUOTA_EXCEEDED, Code.OK]
    bench.machine.disconnected(ConnectionId(3))
    for number in range(3):
        for connection in (1, 4):
            bench.request(connection, Op.EXISTS, wire.watched(f"/n{number}", watch=True))
    assert bench.dropped == {3: "too many sessions"}
    bench.request(2, Op.EXISTS, wire.watched("/n", watch=True))
    assert bench.dropped[2] == "too many watches"
    bench.request(1, Op.CLOSE_SESSION)
    bench.machine.disconnected(ConnectionId(1))
    bench.machine.connected(ConnectionId(5), "here")
    assert bench.connect(5, credentials=None) is not None
    assert bench.prove(5).code == Code.OK, "there is room again"


@pytest.mark.parametrize("watch", [False, True])
def test_a_read_does_not_look_at_the_other_connections_of_its_address(
    bench: Bench, *, watch: bool
) -> None:
    """Anybody can open hundreds, from the address of a broker, too."""

    def calls_of_a_read() -> int:
        count = 0

        def note(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            bench.request(MEMBER, Op.GET_DATA, wire.watched("/a", watch=watch))
        finally:
            sys.setprofile(None)
        return count

    bench.machine.connected(ConnectionId(OTHER), "")
    few = calls_of_a_read()
    bench.request(MEMBER, Op.SET_DATA, wire.set_data("/a", b"", ANY_VERSION))  # takes the watch
    others = 200
    for number in range(others):
        bench.machine.connected(ConnectionId(1000 + number), "")
    assert calls_of_a_read() < few + others  # a garbage collection may add some calls


# -- older trees -------------------------------------------------------------------------------


def test_an_open_tree_is_given_to_the_cluster_once() -> None:
    """Also of the nodes that a client later opens on purpose: those stay."""
    state = State()
    old = Bench(state)
    assert old.connect(MEMBER) is not None
    old.create(MEMBER, "/brokers", b"1")
    old.request(MEMBER, Op.CREATE, create_with_acl("/r", acl(1)))
    upgraded = Bench(state)
    upgraded.carry_out(upgraded.machine.upgrade(upgraded.now))
    mine = cluster_acl(Identity("digest", CREDENTIALS.identity()))
    assert state.nodes["/"].acl == state.nodes["/brokers"].acl == mine
    assert state.nodes["/r"].acl == (Acl(1, "world", "anyone"),)
    assert len(upgraded.txns) == 1
    assert upgraded.connect(MEMBER) is not None
    upgraded.create(MEMBER, "/open")
    assert upgraded.machine.upgrade(upgraded.now) == []
    assert state.nodes["/open"].acl == OPEN_ACL


def test_another_secret_gets_what_the_former_had() -> None:
    state = State()
    old = Bench(state)
    old.machine.upgrade(old.now)
    state.nodes["/zookeeper"].acl = (Acl(31, *ME), Acl(1, *Identity("digest", WRONG.identity())))
    new = Identity("digest", "millstream:new")
    changed = {change.path: change.acl for change in upgrades(state, new)}
    assert changed["/"] == cluster_acl(new)
    assert changed["/zookeeper"] == (Acl(31, *ME), Acl(1, *new))


def test_nodes_and_bytes_of_one_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote a node last counts for it, and what needs no more room may be written."""
    monkeypatch.setattr(
        writes_module, "DATA_BYTES_PER_ADDRESS_MAX", 3 * size_of("/n0", b"", OPEN_ACL)
    )
    bench = Bench()
    for connection, address in ((1, "here"), (2, "here"), (3, "there")):
        bench.machine.connected(ConnectionId(connection), address)
        assert bench.connect(connection) is not None
    codes = [bench.create(1, f"/n{number}", b"").code for number in range(3)]
    assert codes == [Code.OK] * 3
    assert bench.create(2, "/n3", b"").code == Code.QUOTA_EXCEEDED
    assert (
        bench.request(1, Op.SET_DATA, wire.set_data("/n0", b"1", ANY_VERSION)).code
        == Code.QUOTA_EXCEEDED
    )
    assert bench.request(1, Op.SET_DATA, wire.set_data("/n0", b"", ANY_VERSION)).code == Code.OK
    assert bench.request(3, Op.SET_DATA, wire.set_data("/n0", b"1", ANY_VERSION)).code == Code.OK
    assert bench.create(2, "/n3", b"").code == Code.OK
    assert bench.request(2, Op.DELETE, wire.versioned("/n3", ANY_VERSION)).code == Code.OK
    assert bench.create(1, "/e", b"", kind=NodeKind.EPHEMERAL).code == Code.OK
    assert bench.create(2, "/n3", b"").code == Code.QUOTA_EXCEEDED
    bench.request(1, Op.CLOSE_SESSION)
    assert bench.create(2, "/n3", b"").code == Code.OK
    operations: list[port.Operation] = [
        port.Delete(path="/n0", version=ANY_VERSION),
        port.Set(path="/n1", data=b"", version=0),
        port.Check(path="/n2", version=9),
    ]
    before = dict(bench.machine.state.bytes_from)
    bench.request(3, Op.MULTI, wire.multi(operations))
    assert bench.machine.state.bytes_from == before, "a multi that is refused counts nothing"


# -- what access lists take ----------------------------------------------------------------------


def many(count: int, text: str = "") -> bytes:
    """A list of the cluster's identity and others."""
    others = [(1, "digest", f"u{number}{text}:hash") for number in range(count - 1)]
    entries = [(31, "digest", CREDENTIALS.identity()), *others]
    packed = [
        pack_integer(one) + pack_text(scheme) + pack_text(name) for one, scheme, name in entries
    ]
    return pack_integer(count) + b"".join(packed)


def set_acl(path: str, entries: bytes) -> bytes:
    return pack_text(path) + entries + pack_integer(ANY_VERSION)


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        (many(ACL_ENTRIES_MAX), Code.OK),
        (many(ACL_ENTRIES_MAX + 1), Code.INVALID_ACL),
        (many(2, "x" * ACL_IDENTITY_CHARACTERS_MAX), Code.INVALID_ACL),
    ],
    ids=["as many as may be", "one more", "a long identity"],
)
def test_access_lists_are_short(bench: Bench, entries: bytes, code: Code) -> None:
    assert bench.request(MEMBER, Op.SET_ACL, set_acl("/a", entries)).code == code
    assert bench.request(MEMBER, Op.CREATE, create_with_acl("/b", entries)).code == code


def test_access_lists_count_as_bytes_of_their_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the list is replaced, a multi is refused, the node goes, or a snapshot is read."""
    state = bench.machine.state
    before = (state.size_bytes, dict(state.bytes_from))
    assert bench.request(MEMBER, Op.CREATE, create_with_acl("/b", many(3))).code == Code.OK
    assert bench.request(MEMBER, Op.SET_ACL, set_acl("/b", many(9))).code == Code.OK
    grown = state.size_bytes
    assert grown == before[0] + size_of("/b", b"", OPEN_ACL) + 8 * ACL_ENTRY_BYTES
    assert decode_snapshot(encode_snapshot(state)).size_bytes == grown
    monkeypatch.setattr(writes_module, "DATA_BYTES_MAX", grown)
    assert bench.request(MEMBER, Op.SET_ACL, set_acl("/b", many(10))).code == Code.QUOTA_EXCEEDED
    assert bench.request(MEMBER, Op.SET_ACL, set_acl("/b", many(2))).code == Code.OK
    monkeypatch.undo()
    draft = Draft(state, time_ms=0, session_id=NO_SESSION, address="other")
    draft.add(SetNodeAcl("/b", state.nodes["/a"].acl))
    draft.undo()
    assert bench.request(MEMBER, Op.DELETE, wire.versioned("/b", ANY_VERSION)).code == Code.OK
    assert (state.size_bytes, state.bytes_from) == before


def test_nodes_share_equal_access_lists(bench: Bench) -> None:
    for path in ("/b", "/c"):
        bench.request(MEMBER, Op.CREATE, create_with_acl(path, many(2)))
    bench.create(MEMBER, "/d")
    bench.request(MEMBER, Op.SET_ACL, set_acl("/d", many(2)))
    for nodes in (
        bench.machine.state.nodes,
        decode_snapshot(encode_snapshot(bench.machine.state)).nodes,
    ):
        assert nodes["/b"].acl is nodes["/c"].acl
        assert nodes["/b"].acl is nodes["/d"].acl


def test_lists_that_no_node_has_any_more_are_not_kept(bench: Bench) -> None:
    for number in range(3 * ACLS_SHARED_MAX):
        bench.request(MEMBER, Op.SET_ACL, set_acl("/a", many(2, str(number))))
    assert len(bench.machine.state._shared) <= ACLS_SHARED_MAX
