"""Real ZooKeeper servers from pyspark's jars, so only Java is needed."""

import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from millstream.testing.peers.kafka import free_ports
from millstream.testing.peers.runtimes import MissingRuntimeError, find_runtime

TICK_MS: Final = 500
START_TIMEOUT_S: Final = 60.0
_SERVER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SHELL: Final = "org.apache.zookeeper.ZooKeeperMain"
_FRUGAL: Final = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def java_command(main: str, *arguments: str) -> list[str]:
    """The command that runs a class of ZooKeeper; raises MissingRuntimeError."""
    java = find_runtime("java")
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise MissingRuntimeError("pyspark is not installed: its jars have ZooKeeper")
    jars = Path(next(iter(found.submodule_search_locations))) / "jars"
    return [str(java), *_FRUGAL, "-cp", f"{jars}/*", main, *arguments]


class ZooKeeperServer:
    """One server's process, which may be killed and started again."""

    def __init__(self, directory: Path, config: Path, port: int) -> None:
        self._directory = directory
        self._config = config
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                java_command(_SERVER, str(self._config)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )

    def wait_ready(self) -> None:
        """Wait until it serves, which a member of an ensemble does only with a quorum."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while four_letters(self.port, b"srvr").find("Mode:") < 0:
            if time.monotonic() > deadline_s or (self._process and self._process.poll()):
                output = (self._directory / "output").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"ZooKeeper did not start:\n{output}")
            time.sleep(0.05)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(20)


def four_letters(port: int, word: bytes) -> str:
    """The server's answer to a four-letter-word command; "" without an answer."""
    text = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(word)
        while chunk := connection.recv(65_536):
            text += chunk
    return text.decode(errors="replace")


@contextmanager
def zookeeper_servers(directory: Path, count: int = 1) -> Iterator[list[ZooKeeperServer]]:
    """A server, or an ensemble of several, ready to use; stopped after the block."""
    ports = free_ports(3 * count)
    servers = []
    for number in range(1, count + 1):
        own = directory / f"zookeeper-{number}"
        data = own / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        config = own / "zoo.cfg"
        config.write_text(_config(data, number, ports, count))
        servers.append(ZooKeeperServer(own, config, ports[number - 1]))
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
            server.start()
        for server in servers:
            server.wait_ready()
        yield servers


def _config(data: Path, number: int, ports: list[int], count: int) -> str:
    settings: dict[str, object] = {
        "tickTime": TICK_MS,
        "initLimit": 20,
        "syncLimit": 10,
        "dataDir": data,
        "clientPort": ports[number - 1],
        "clientPortAddress": "127.0.0.1",
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }
    if count > 1:
        for member in range(1, count + 1):
            peer, election = ports[count + member - 1], ports[2 * count + member - 1]
            settings[f"server.{member}"] = f"127.0.0.1:{peer}:{election}"
    return "".join(f"{name}={value}\n" for name, value in settings.items())
