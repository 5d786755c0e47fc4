"""A network namespace for every node of a test, with links that can be cut in one direction.

Each node has a network namespace and an IPv4 address; a router namespace in the middle forwards
between them. A cut is a rule in the router that silently drops packets from one address to another,
as a broken network does: the sender gets no error, and the other direction still
works. (A route on the sender would fail at once, which is not how loss behaves.)

Nothing here changes the machine: the namespaces have no names, two worlds never meet, and all of a
world ends with the process that made it, however that ends (`chaos/network/namespace_holder.py`). A
process started in a node ends with the *thread* that started it, so that thread must outlive the
world.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any, Final, Self

from millstream.testing.chaos.network import namespace_holder as net_holder

START_MAX_S: Final = 30.0
COMMAND_MAX_S: Final = 20.0
CONNECT_MAX_S: Final = 5.0
NODES_MAX: Final = 200
"""Each has a network of 256 addresses in 10.77.0.0/16, which is not visible outside."""
PROGRAMS: Final = ("ip", "nsenter", "setpriv", "unshare")
_EXIT_MAX_S: Final = 10.0


class NoNetworks(RuntimeError):
    """This machine does not allow network namespaces; the message says why."""


class _Holder:
    """A process that keeps a namespace alive, and the socket to it."""

    def __init__(self, enter: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._control.settimeout(START_MAX_S)
        command = [*enter, sys.executable, "-I", "-S", net_holder.__file__]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
            )
        self.pid = self._process.pid
        try:
            self._wait_ready(command)
        except BaseException:
            self.close()
            raise

    def _wait_ready(self, command: Sequence[str]) -> None:
        try:
            said = self._control.recv(net_holder.PACKET_BYTES_MAX)
        except OSError as error:
            raise NoNetworks(f"{' '.join(command[:2])}: {error}") from error
        if said != net_holder.READY:
            errors = self._process.stderr.read() if self._process.stderr is not None else ""
            raise NoNetworks(f"{' '.join(command[:2])}: {errors.strip() or 'ended'}")

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection opened inside the namespace; raises OSError like a local connect."""
        self._control.settimeout(timeout_s + COMMAND_MAX_S)
        self._control.send(f"{host} {port} {timeout_s}".encode())
        said, descriptors, _, _ = socket.recv_fds(self._control, net_holder.PACKET_BYTES_MAX, 1)
        if said != net_holder.CONNECTED:
            raise ConnectionError(f"to {host}:{port}: {said.decode()}")
        made = socket.socket(fileno=descriptors[0])
        made.settimeout(timeout_s)
        return made

    def close(self) -> None:
        """The namespace ends with its last process."""
        self._control.close()
        try:
            self._process.wait(_EXIT_MAX_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_EXIT_MAX_S)
        if self._process.stderr is not None:
            self._process.stderr.close()


class Node:
    """One machine of the network."""

    def __init__(self, name: str, address: str, holder: _Holder, enter: Sequence[str]) -> None:
        self.name: Final = name
        self.address: Final = address
        self._holder = holder
        self._enter = [*enter, "setpriv", "--pdeathsig", "KILL", "--"]

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command for running inside this node; it keeps its process id and ends with us."""
        return [*self._enter, *arguments]

    def start(
        self,
        arguments: Sequence[str],
        *,
        stdout: IO[Any] | int | None = subprocess.PIPE,
        stderr: IO[Any] | int | None = None,
    ) -> "subprocess.Popen[str]":
        """A process in this node; signals reach it directly."""
        return subprocess.Popen(  # noqa: S603 - our own arguments
            self.command(arguments),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the test, which then ends them
        )

    def connect(self, host: str, port: int, *, timeout_s: float = CONNECT_MAX_S) -> socket.socket:
        """A connection from this node, usable here; raises OSError."""
        return self._holder.connect(host, port, timeout_s)


class NetWorld:
    """Nodes around a router. Raises NoNetworks where the machine does not allow it."""

    def __init__(self) -> None:
        missing = [one for one in PROGRAMS if shutil.which(one) is None]
        if missing:
            raise NoNetworks(f"not installed: {', '.join(missing)} (Debian: iproute2, util-linux)")
        self._stack = ExitStack()
        self._nodes: dict[str, Node] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._router, self._enter = self._first_that_works()
        self._stack.callback(self._router.close)
        try:
            self._in_router("ip", "link", "set", "lo", "up")
            self._in_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self._nodes.values())

    # -- building --------------------------------------------------------------------------

    def add(self, name: str) -> Node:
        """Add a node that reaches all the others; possible at any time."""
        number = len(self._nodes) + 1
        if name in self._nodes or number > NODES_MAX:
            raise ValueError(f"no node {name!r}: the name is taken, or there are {NODES_MAX}")
        holder = _Holder([*self._enter_of(self._router), "unshare", "-n", "--"])
        self._stack.callback(holder.close)
        inside, address = f"10.77.{number}.1", f"10.77.{number}.2"
        port, peer = f"to{number}", ["peer", "name", "eth0", "netns", str(holder.pid)]
        self._in_router("ip", "link", "add", port, "type", "veth", *peer)
        self._in_router("ip", "address", "add", f"{inside}/24", "dev", port)
        self._in_router("ip", "link", "set", port, "up")
        enter = self._enter_of(holder)
        for words in (
            "link set lo up",
            f"address add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {inside}",
        ):
            _run([*enter, "ip", *words.split()])
        self._nodes[name] = Node(name, address, holder, enter)
        return self._nodes[name]

    # -- faults ----------------------------------------------------------------------------

    def cut(self, source: Node, target: Node) -> None:
        """Drop everything from `source` to `target`; the other direction still works."""
        pair = (source.address, target.address)
        if pair not in self._cuts:
            self._rule("add", *pair)
            self._cuts.add(pair)

    def cut_both(self, one: Node, other: Node) -> None:
        """Cut both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, node: Node) -> None:
        """Cut the node from all others, in both directions."""
        for other in self.nodes:
            if other is not node:
                self.cut_both(node, other)

    def heal(self) -> None:
        """Remove all cuts; packets that were dropped stay lost."""
        for pair in sorted(self._cuts):
            self._rule("del", *pair)
        self._cuts.clear()

    def is_cut(self, source: Node, target: Node) -> bool:
        return (source.address, target.address) in self._cuts

    def _rule(self, verb: str, source: str, target: str) -> None:
        self._in_router("ip", "rule", verb, "from", source, "to", target, "blackhole")

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """End the namespaces; processes in them must be ended by those that started them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- namespaces ------------------------------------------------------------------------

    @staticmethod
    def _first_that_works() -> tuple[_Holder, list[str]]:
        """Root needs no user namespace; other users become root in one of their own."""
        ways = [["-n"], ["-Urn"]] if os.geteuid() == 0 else [["-Urn"]]
        reasons = []
        for options in ways:
            try:
                holder = _Holder(["unshare", *options, "--"])
            except NoNetworks as why:
                reasons.append(str(why))
                continue
            user = ["-U", "--preserve-credentials"] if options == ["-Urn"] else []
            return holder, ["nsenter", *user, "-n"]
        raise NoNetworks("; ".join(reasons))

    def _enter_of(self, holder: _Holder) -> list[str]:
        return [*self._enter, "-t", str(holder.pid), "--"]

    def _in_router(self, *words: str) -> None:
        _run([*self._enter_of(self._router), *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(  # noqa: S603 - our own arguments
        command, capture_output=True, text=True, timeout=COMMAND_MAX_S, check=False
    )
    if done.returncode != 0:
        raise NoNetworks(f"{' '.join(command)}: {done.stderr.strip()}")


def missing_networks() -> str:
    """Why network namespaces are not possible here; "" where they are."""
    try:
        with NetWorld() as world:
            one, other = world.add("one"), world.add("other")
            world.cut_both(one, other)
    except NoNetworks as why:
        return str(why)
    return ""


def require_networks() -> None:
    """In a test: skip with the reason where there are no network namespaces; fail with CI=true."""
    import pytest

    why = missing_networks()
    if why and os.environ.get("CI") == "true":
        pytest.fail(f"no network namespaces: {why}", pytrace=False)
    if why:
        pytest.skip(f"no network namespaces: {why}")
