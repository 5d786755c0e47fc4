"""`millstream keeper` as a process: killed while it is written to, used by kazoo's recipes and by
ZooKeeper's own shell, asked four-letter words, and given bad input.
"""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError
from kazoo.retry import KazooRetry

from kits.coordination.coordination_kit import CREDENTIALS
from kits.process.keeper_process import KeeperProcess, keeper_process
from kits.process.waiting_for import until
from millstream.coordination.keeper.limits import FRAME_BYTES_MAX
from millstream.coordination.keeper.protocol import Op
from millstream.coordination.keeper.state import NO_ZXID
from millstream.model.ids import NO_SESSION
from millstream.testing.peers.kafka import free_ports
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.peers.zookeeper import SHELL, four_letters, java_command
from millstream.testing.sim import keeper_requests as wire

KILLS = 4
ACKNOWLEDGED_BETWEEN_KILLS = 300
WRITERS = 3
SMALL_LOGS = ("--snapshot-log-bytes", "8192")
"""So that kills hit snapshots being made and logs being removed."""


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    with keeper_process(tmp_path_factory.mktemp("keeper")) as running:
        yield running


def client_of(place: str, timeout_s: float = 6.0, secret: str = CREDENTIALS.packet()) -> Any:
    retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=0.2)
    auth = {("digest", secret)} if secret else None
    client = KazooClient(place, timeout=timeout_s, connection_retry=retry, auth_data=auth)
    client.start(20)
    return client


@pytest.fixture
def client(keeper: KeeperProcess) -> Iterator[Any]:
    made = client_of(keeper.address)
    try:
        yield made
    finally:
        made.stop()
        made.close()


# -- kills -------------------------------------------------------------------------------------


class Writer:
    """Creates numbered nodes, many at a time, and notes which were acknowledged."""

    def __init__(self, place: str, root: str) -> None:
        self.root = root
        self.acknowledged: set[str] = set()
        self.client = client_of(place)
        self.client.create(root)
        self.client.create(f"{root}/alive", ephemeral=True)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=root)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            if not self.client.connected:
                self._is_over.wait(0.01)
                continue
            paths = [f"{self.root}/{number + one}" for one in range(20)]
            number += 20
            results = [(path, self.client.create_async(path, path.encode())) for path in paths]
            for path, result in results:
                if result.wait(20) and result.successful():
                    self.acknowledged.add(path)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)
        self.client.stop()
        self.client.close()


def wait_for_more(writers: list[Writer]) -> None:
    def count() -> int:
        return sum(len(one.acknowledged) for one in writers)

    enough = count() + ACKNOWLEDGED_BETWEEN_KILLS
    until(lambda: count() >= enough, "writes are acknowledged", timeout_s=60)


def check(writer: Writer, session_id: int, checker: Any) -> None:
    acknowledged = set(writer.acknowledged)  # which goes on growing
    found = {f"{writer.root}/{name}" for name in checker.get_children(writer.root)}
    assert acknowledged <= found
    _, stat = checker.get(f"{writer.root}/alive")
    assert stat.ephemeralOwner == session_id  # the session came through all of it
    sample = sorted(acknowledged)[:: 1 + len(acknowledged) // 20]
    assert all(checker.get(path)[0] == path.encode() for path in sample)


def test_nothing_acknowledged_is_lost_when_it_is_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    writers: list[Writer] = []
    with ExitStack() as keepers, ExitStack() as stack:
        for kill in range(KILLS + 1):
            keeper = keepers.enter_context(keeper_process(tmp_path, port=port, options=SMALL_LOGS))
            if kill == 0:
                for index in range(WRITERS):
                    writers.append(Writer(keeper.address, f"/w{index}"))
                    stack.callback(writers[-1].stop)
                sessions = [writer.client.client_id[0] for writer in writers]
            wait_for_more(writers)
            if kill < KILLS:
                keeper.kill()
        checker = client_of(keeper.address)
        stack.callback(checker.close)
        stack.callback(checker.stop)
        for writer, session_id in zip(writers, sessions, strict=True):
            check(writer, session_id, checker)
        names = [path.name for path in (tmp_path / "data").iterdir()]
        assert sum(name.startswith("snapshot.") for name in names) >= 1
        for writer in writers:
            writer.stop()
        until(lambda: len(list((tmp_path / "data").iterdir())) <= 6, "old files are removed")


def test_a_clean_stop_keeps_everything_and_ends_with_0(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with keeper_process(tmp_path, port=port) as keeper:
        client = client_of(keeper.address)
        client.create("/kept", b"data")
        client.create("/mine", ephemeral=True)
        assert keeper.stop() == 0
        until(lambda: not client.connected, "the client notices")
        with keeper_process(tmp_path, port=port):
            assert client.retry(client.get, "/kept")[0] == b"data"
            assert client.exists("/mine").ephemeralOwner == client.client_id[0]
            client.stop()
            client.close()


def test_a_second_keeper_of_one_directory_says_why_it_cannot(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millstream", "keeper", "--data-dir", str(tmp_path / "data")]
    with keeper_process(tmp_path) as keeper:
        code, said = ended([*command, "--port", "0"])
        assert code == 1
        assert "in use by another process" in said
        other = ["--data-dir", str(tmp_path / "other"), "--port", str(keeper.port)]
        code, said = ended([*command, *other])
        assert code == 1
        assert "millstream: the keeper cannot start: " in said
        assert "Traceback" not in said


def ended(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


# -- kazoo's recipes ---------------------------------------------------------------------------


def test_kazoo_elects_one_leader_after_the_other(keeper: KeeperProcess, client: Any) -> None:
    other = client_of(keeper.address)
    led: list[str] = []
    is_first, may_end = threading.Event(), threading.Event()

    def lead() -> None:
        led.append("first")
        is_first.set()
        may_end.wait(20)

    one = threading.Thread(target=client.Election("/election", "one").run, args=(lead,))
    two = threading.Thread(
        target=other.Election("/election", "two").run, args=(lambda: led.append("second"),)
    )
    one.start()
    assert is_first.wait(20)
    two.start()
    until(lambda: len(client.get_children("/election")) == 2, "both stand")
    assert client.Election("/election").contenders() == ["one", "two"]
    assert led == ["first"]
    may_end.set()
    one.join(20)
    two.join(20)
    assert led == ["first", "second"]
    other.stop()
    other.close()


def test_kazoos_lock_passes_on_when_its_holder_dies(keeper: KeeperProcess, client: Any) -> None:
    other = client_of(keeper.address)
    lock, waiting = other.Lock("/lock", "other"), client.Lock("/lock", "client")
    assert lock.acquire()
    assert not waiting.acquire(blocking=False)
    assert waiting.contenders() == ["other"]
    other.stop()  # its session ends without a release
    other.close()
    assert waiting.acquire(timeout=20)
    waiting.release()


def test_kazoos_party_and_counter(keeper: KeeperProcess, client: Any) -> None:
    other = client_of(keeper.address)
    parties = [one.Party("/party", name) for one, name in ((client, "a"), (other, "b"))]
    for party in parties:
        party.join()
    assert sorted(parties[0]) == ["a", "b"]
    parties[1].leave()
    assert list(parties[0]) == ["a"]
    counters = [one.Counter("/counter") for one in (client, other)]
    threads = [threading.Thread(target=_count, args=(counter,)) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counters[0].value == 2 * 25
    other.stop()
    other.close()


def _count(counter: Any) -> None:
    for _ in range(25):
        counter += 1


def test_kazoos_watchers_follow_data_and_children(client: Any) -> None:
    seen: list[object] = []
    client.create("/followed", b"0")
    client.DataWatch("/followed", lambda data, _stat: seen.append(data))
    client.ChildrenWatch("/followed", lambda names: seen.append(sorted(names)))
    client.set("/followed", b"1")
    until(lambda: seen == [b"0", [], b"1"], "the change is seen")
    client.create("/followed/a")
    until(lambda: seen[-1] == ["a"], "the child is seen")
    with pytest.raises(NodeExistsError):
        client.create("/followed")


# -- ZooKeeper's shell -------------------------------------------------------------------------


def test_zookeepers_own_shell_works(keeper: KeeperProcess) -> None:
    require_runtime("java")
    script = "\n".join(
        [
            f"addauth digest {CREDENTIALS.packet()}",
            "create /shell first",
            "set -v 0 /shell second",
            "get -s /shell",
            "create -s /shell/n- x",
            "create -e /shell/e y",
            "ls -s /shell",
            "getAllChildrenNumber /shell",
            "getEphemerals /shell",
            "getAcl /shell",
            "stat -w /shell",
            "addWatch -m PERSISTENT_RECURSIVE /shell",
            "set /shell third",
            "sync /shell",
            "delete -v 7 /shell/e",
            "deleteall /shell",
            "ls /shell",
            "whoami",
            "quit",
        ]
    )
    command = java_command(SHELL, "-server", keeper.address)
    done = subprocess.run(
        command, input=script + "\n", capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    for expected in (
        "Created /shell",
        "dataVersion = 1",
        "Created /shell/n-0000000000",
        "Created /shell/e",
        "[e, n-0000000000]",
        "'world,'anyone",
        "cdrwa",
        "NodeDataChanged path:/shell",
        "NodeDeleted path:/shell/e",
        "version No is not valid : /shell/e",
        "Node does not exist: /shell",
    ):
        assert expected in said, said[-6000:]


def test_the_java_client_comes_back_after_a_restart_with_its_watches(tmp_path: Path) -> None:
    """It sets them again by SET_WATCHES2, and is notified at once of what it missed."""
    require_runtime("java")
    (port,) = free_ports(1)
    output = tmp_path / "shell"
    with ExitStack() as stack:
        first = stack.enter_context(keeper_process(tmp_path, port=port))
        client = client_of(first.address)
        for path in ("/watched", "/missed"):
            client.create(path, b"0")
        shell = subprocess.Popen(
            java_command(SHELL, "-timeout", "10000", "-server", first.address),
            stdin=subprocess.PIPE,
            stdout=stack.enter_context(output.open("wb")),
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.callback(shell.wait, 20)
        stack.callback(shell.kill)
        assert shell.stdin is not None
        shell.stdin.write(f"addauth digest {CREDENTIALS.packet()}\n")
        shell.stdin.write("get -w /watched\nget -w /missed\ncreate -e /of-java\n")
        shell.stdin.flush()
        until(lambda: client.exists("/of-java"), "it watches", timeout_s=60)
        owner = client.exists("/of-java").ephemeralOwner
        first.kill()
        stack.enter_context(keeper_process(tmp_path, port=port))
        client.retry(client.set, "/missed", b"1")
        until(lambda: "NodeDataChanged path:/missed" in output.read_text(), "missed, and told")
        client.retry(client.set, "/watched", b"1")
        until(lambda: "NodeDataChanged path:/watched" in output.read_text(), "told")
        assert client.exists("/of-java").ephemeralOwner == owner
        shell.stdin.close()
        client.stop()
        client.close()


# -- four-letter words -------------------------------------------------------------------------


def test_four_letter_words(keeper: KeeperProcess, client: Any) -> None:
    client.create("/counted", ephemeral=True)
    assert four_letters(keeper.port, b"ruok") == "imok"
    assert four_letters(keeper.port, b"isro") == "rw"
    status = four_letters(keeper.port, b"srvr")
    assert status.startswith("Zookeeper version: 3.9.5-millstream")
    assert "Mode: standalone\n" in status
    monitored = dict(line.split("\t") for line in four_letters(keeper.port, b"mntr").splitlines())
    assert monitored["zk_server_state"] == "standalone"
    assert int(monitored["zk_ephemerals_count"]) >= 1
    assert int(monitored["zk_znode_count"]) >= 5
    for word in (b"conf", b"dump", b"stat", b"wchs", b"wchp", b"cons"):
        expected = f"{word.decode()} is not executed because it is not in the whitelist.\n"
        assert four_letters(keeper.port, word) == expected, "it names nodes, clients or files"
    assert client.server_version() == (3, 9, 5)


# -- bad input ---------------------------------------------------------------------------------


def is_hung_up_after(port: int, data: bytes) -> bool:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(data)
        try:
            return connection.recv(1000) == b""
        except ConnectionResetError:
            return True


def connect_bytes() -> bytes:
    return wire.connect_frame(
        last_zxid=NO_ZXID, timeout_ms=6000, session_id=NO_SESSION, password=bytes(16)
    )


def test_what_is_no_request_ends_its_connection_and_nothing_else(
    keeper: KeeperProcess, client: Any
) -> None:
    too_large = (FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    for data in (too_large, b"GET / HTTP/1.1\r\n", b"\xff" * 8, bytes(4), wire.frame(b"short")):
        assert is_hung_up_after(keeper.port, data), data
    assert client.exists("/") is not None


def test_a_client_that_sends_much_and_reads_late_gets_every_answer(keeper: KeeperProcess) -> None:
    count = 6_000
    with socket.create_connection(("127.0.0.1", keeper.port), 20) as connection:
        exists = [
            wire.frame(
                number.to_bytes(4, "big") + int(Op.EXISTS).to_bytes(4, "big") + b"\0\0\0\1/\0"
            )
            for number in range(1, count + 1)
        ]
        sender = threading.Thread(
            target=connection.sendall,
            args=(connect_bytes() + wire.auth_frame(CREDENTIALS) + b"".join(exists),),
        )
        sender.start()
        reader = connection.makefile("rb")
        greeting = reader.read(int.from_bytes(reader.read(4), "big"))
        assert len(greeting) == 37
        assert len(reader.read(int.from_bytes(reader.read(4), "big"))) == 16, "the secret is right"
        for number in range(1, count + 1):
            frame = reader.read(int.from_bytes(reader.read(4), "big"))
            assert int.from_bytes(frame[:4], "big") == number
        sender.join(20)


def test_a_request_that_is_too_large_for_the_server_costs_the_connection_only(
    keeper: KeeperProcess, client: Any
) -> None:
    session_id = client.client_id[0]
    with pytest.raises(Exception, match=r".*"):
        client.create("/large", bytes(FRAME_BYTES_MAX + 1))
    until(lambda: client.connected, "it comes back")
    assert client.client_id[0] == session_id
    assert client.exists("/large") is None
