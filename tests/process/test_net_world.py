"""Networks of their own for the nodes of a test: they reach each other, cuts are silent and go one
way, everything is as before after healing, and nothing is left behind, whichever process is killed.
"""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.process.waiting_for import until
from millstream.testing.chaos.network import world as net_world
from millstream.testing.chaos.network.world import NetWorld, Node, NoNetworks, require_networks

PORT = 7000
SILENCE_S = 0.4
ANSWER_MAX_S = 20.0

ECHO = f"""
import socket, sys, threading

def serve(connection):
    while data := connection.recv(1000):
        print("received", data.decode(), flush=True)
        connection.sendall(data)

server = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def world() -> Iterator[NetWorld]:
    require_networks()
    with NetWorld() as made:
        yield made


def echo_server(node: Node) -> "subprocess.Popen[str]":
    process = node.start([sys.executable, "-c", ECHO])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(ANSWER_MAX_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def pair(world: NetWorld) -> Iterator[tuple[Node, Node, "subprocess.Popen[str]"]]:
    """Two nodes, the second with a server."""
    one, other = world.add("one"), world.add("other")
    server = echo_server(other)
    yield one, other, server
    end(server)


def answer(connection: socket.socket, data: bytes, timeout_s: float = ANSWER_MAX_S) -> bytes:
    connection.settimeout(timeout_s)
    connection.sendall(data)
    return connection.recv(1000)


def test_nodes_reach_each_other_and_themselves(
    world: NetWorld, pair: tuple[Node, Node, "subprocess.Popen[str]"]
) -> None:
    one, other, _ = pair
    third = world.add("third")
    assert len({node.address for node in world.nodes}) == 3
    for node in (one, other, third):
        with node.connect(other.address, PORT) as connection:
            assert answer(connection, b"hello") == b"hello"
            assert connection.getsockname()[0] == node.address


def test_nobody_listens_is_told_as_such(world: NetWorld) -> None:
    one, other = world.add("one"), world.add("other")
    with pytest.raises(ConnectionError, match="ConnectionRefusedError"):
        one.connect(other.address, PORT)


def test_a_cut_is_silent_and_only_one_way(
    world: NetWorld, pair: tuple[Node, Node, "subprocess.Popen[str]"]
) -> None:
    """The server receives what it is sent, and its answer is lost without an error."""
    one, other, server = pair
    assert server.stdout is not None
    with one.connect(other.address, PORT) as connection:
        assert answer(connection, b"before") == b"before"
        assert server.stdout.readline() == "received before\n"
        world.cut(other, one)
        with pytest.raises(TimeoutError):
            answer(connection, b"there", SILENCE_S)
        assert server.stdout.readline() == "received there\n"
        world.heal()
        connection.settimeout(ANSWER_MAX_S)
        assert connection.recv(1000) == b"there"  # sent again by TCP


def test_a_cut_in_the_way_there_keeps_it_from_being_heard(
    world: NetWorld, pair: tuple[Node, Node, "subprocess.Popen[str]"]
) -> None:
    one, other, server = pair
    assert server.stdout is not None
    third = world.add("third")
    with one.connect(other.address, PORT) as connection:
        world.cut(one, other)
        assert world.is_cut(one, other)
        assert not world.is_cut(other, one)
        with pytest.raises(TimeoutError):
            answer(connection, b"lost", SILENCE_S)
        with third.connect(other.address, PORT) as of_third:
            assert answer(of_third, b"third") == b"third"
        # Had the first been received, it would have been printed before.
        assert server.stdout.readline() == "received third\n"
        world.heal()
        assert server.stdout.readline() == "received lost\n"


def test_a_new_connection_over_a_cut_is_neither_made_nor_refused(
    world: NetWorld, pair: tuple[Node, Node, "subprocess.Popen[str]"]
) -> None:
    one, other, _ = pair
    world.cut_both(one, other)
    assert world.is_cut(one, other)
    assert world.is_cut(other, one)
    with pytest.raises(ConnectionError, match="timed out"):
        one.connect(other.address, PORT, timeout_s=SILENCE_S)
    world.heal()
    with one.connect(other.address, PORT) as connection:
        assert answer(connection, b"again") == b"again"


def test_an_isolated_node_hears_nobody_and_the_others_go_on(
    world: NetWorld, pair: tuple[Node, Node, "subprocess.Popen[str]"]
) -> None:
    one, other, _ = pair
    third = world.add("third")
    world.isolate(one)
    world.isolate(one)  # twice is once
    with pytest.raises(ConnectionError, match="timed out"):
        one.connect(other.address, PORT, timeout_s=SILENCE_S)
    with third.connect(other.address, PORT) as connection:
        assert answer(connection, b"third") == b"third"
    world.heal()
    assert not any(world.is_cut(one, node) for node in world.nodes)
    with one.connect(other.address, PORT) as connection:
        assert answer(connection, b"one") == b"one"


def test_signals_reach_a_process_in_a_node(
    pair: tuple[Node, Node, "subprocess.Popen[str]"],
) -> None:
    one, other, server = pair
    with one.connect(other.address, PORT) as connection:
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            answer(connection, b"paused", SILENCE_S)
        server.send_signal(signal.SIGCONT)
        connection.settimeout(ANSWER_MAX_S)
        assert connection.recv(1000) == b"paused"


def test_two_worlds_never_meet(world: NetWorld) -> None:
    with NetWorld() as second:
        servers = [echo_server(made.add("server")) for made in (world, second)]
        client = world.add("client")
        with client.connect(world.nodes[0].address, PORT) as connection:
            assert answer(connection, b"mine") == b"mine"
        for server in servers:
            server.kill()
            assert server.stdout is not None
            output = server.stdout.read()
            assert output == ("received mine\n" if server is servers[0] else "")
            end(server)


def test_a_name_is_given_once(world: NetWorld) -> None:
    world.add("one")
    with pytest.raises(ValueError, match="the name is taken"):
        world.add("one")


def test_it_works_for_others_than_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a user namespace, which is the only way there for them."""
    require_networks()
    if os.geteuid() == 0:
        user = subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False)
        if user.returncode:
            pytest.skip(f"no user namespaces: {user.stderr.decode().strip()}")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with NetWorld() as world:
        one, other = world.add("one"), world.add("other")
        server = echo_server(other)
        with one.connect(other.address, PORT) as connection:
            assert answer(connection, b"hello") == b"hello"
            world.cut(other, one)
            with pytest.raises(TimeoutError):
                answer(connection, b"silent", SILENCE_S)
        end(server)


# -- where it cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize("is_ci", [True, False])
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, is_ci: bool) -> None:
    monkeypatch.setattr(net_world, "PROGRAMS", ("ip", "no-such-program"))
    monkeypatch.setenv("CI", "true" if is_ci else "")
    outcome = pytest.fail.Exception if is_ci else pytest.skip.Exception
    with pytest.raises(outcome, match="not installed: no-such-program"):
        require_networks()


def test_a_refused_namespace_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a container without the right to make one does."""
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NoNetworks, match="Operation not permitted"):
        NetWorld()


# -- nothing is left ---------------------------------------------------------------------------


def namespaces() -> set[str]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns" / "net").readlink()))
        except OSError:
            continue
    return found


def interfaces() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def is_gone(pid: int) -> bool:
    """Or a zombie: its exit code was not collected yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


MAKER = """
    import sys
    from millstream.testing.chaos.network.world import NetWorld

    world = NetWorld()
    one, other = world.add("one"), world.add("other")
    world.cut(one, other)
    loop = "import signal; print('ready', flush=True); signal.pause()"
    running = one.start([sys.executable, "-c", loop])
    running.stdout.readline()
    holders = [world._router.pid, *(node._holder.pid for node in world.nodes)]
    print(running.pid, *holders, flush=True)
    input()
"""


def test_nothing_is_left_of_a_world_whose_maker_is_killed() -> None:
    require_networks()
    links = interfaces()
    maker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(MAKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    pids = [int(word) for word in maker.stdout.readline().split()]
    assert len(pids) == 4
    made = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
    assert len(made) == 3
    assert interfaces() == links  # also while it is there
    maker.kill()
    maker.wait(ANSWER_MAX_S)
    until(lambda: all(is_gone(pid) for pid in pids), "all of its processes end")
    assert not made & namespaces()
    assert interfaces() == links
    for pipe in (maker.stdin, maker.stdout):
        if pipe is not None:
            pipe.close()


def test_nothing_is_left_after_the_block() -> None:
    require_networks()
    with NetWorld() as world:
        node = world.add("one")
        pids = [world._router.pid, node._holder.pid]
        made = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
        began_s = time.monotonic()
    assert time.monotonic() - began_s < net_world._EXIT_MAX_S  # they end by themselves
    assert all(is_gone(pid) for pid in pids)
    assert not made & namespaces()
