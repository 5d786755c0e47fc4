"""A real broker on a real socket for tests, in a background thread with a loop of its own.

It is a cluster of one: a keeper runs beside it, in a thread of its own, and the broker is elected
as in any cluster. Sessions live for minutes, so that a test can be stopped in a debugger.
"""

import asyncio
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.cli.keeper_thread import HOST as KEEPER_HOST
from millstream.cli.keeper_thread import KeeperThread
from millstream.controller.standalone.controller import METADATA_DIRECTORY
from millstream.controller.store import BROKER
from millstream.coordination.keeper.sessions import SessionRules
from millstream.model.config.properties import check_settings
from millstream.runtime.clock import SystemClock
from millstream.runtime.loop import DirectLoop
from millstream.runtime.network import LoopNetwork
from millstream.testing.sim.keeper_session import WireCoordination

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0

SESSION_TICK_MS: Final = 30_000
SESSION_MS: Final = 20 * SESSION_TICK_MS
SERVERS: Final = "zookeeper.connect"
KEEPER_FOLDER: Final = "keeper"


class BrokerThread:
    """Starts on entry, or by `start`; its data is gone after `stop` unless a directory is given.

    `with BrokerThread() as broker: producer(bootstrap_servers=broker.bootstrap_servers)`
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        directory: Path | None = None,
        is_standalone: bool = False,
    ) -> None:
        """`settings` are a broker's, with Kafka's names; values may be numbers and booleans.

        With `is_standalone` there is no keeper, and the broker keeps its metadata in its own files.
        The same holds for settings that name servers or log directories, and for a directory that
        already has the metadata of a standalone broker.

        A name that no broker knows, or that has no effect here, is a Python warning, as it is a
        line on standard error of a broker's process. Raises InvalidConfig for a bad value.
        """
        self._settings = {name: _text(value) for name, value in (settings or {}).items()}
        for warning in check_settings(self._settings, "settings"):
            warnings.warn(warning, stacklevel=2)
        self._directory = directory
        self._is_standalone = is_standalone or not {SERVERS, "log.dirs"}.isdisjoint(self._settings)
        self._keeper: KeeperThread | None = None
        self._keeper_port = 0
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self.host: Final = "127.0.0.1"
        self.port = 0

    @property
    def bootstrap_servers(self) -> str:
        """For the setting of that name of any client."""
        return f"{self.host}:{self.port}"

    @property
    def data_directory(self) -> Path:
        """Where the partitions are."""
        if self._directory is not None:
            return self._directory
        if self._scratch is None:
            raise RuntimeError("the broker was not started")
        return Path(self._scratch.name) / "data"

    def start(self) -> Self:
        """Returns when clients can connect; raises what kept the broker from starting."""
        if self._directory is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="millstream-")
        self._is_ready.clear()
        self._failure = None
        try:
            self._start_keeper()
        except BaseException:
            self.stop()
            raise
        self._thread = threading.Thread(target=self._run, name="millstream broker", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start in {START_TIMEOUT_S:.0f} s")
        failure: BaseException | None = self._failure
        if failure is not None:
            self.stop()
            raise failure
        return self

    def _start_keeper(self) -> None:
        data = self.data_directory
        if self._is_standalone or (data / METADATA_DIRECTORY / BROKER).exists():
            return
        self._keeper = KeeperThread(
            data / KEEPER_FOLDER, rules=SessionRules(tick_ms=SESSION_TICK_MS), is_guest=True
        )
        self._keeper_port = self._keeper.start(0, on_failure=lambda _: None)

    def stop(self) -> None:
        """A clean stop; another `start` with the same directory finds everything."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and self._stop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(STOP_TIMEOUT_S)
            if thread.is_alive():
                raise TimeoutError(f"the broker did not stop in {STOP_TIMEOUT_S:.0f} s")
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=DirectLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by `start`, in the caller's thread
            self._failure = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data_directory),
            # A test's group is complete when its first member joins.
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            **self._settings,
        }
        dependencies = BrokerDependencies()
        if self._keeper is not None:
            clock, address = SystemClock(), (KEEPER_HOST, self._keeper_port)
            coordination = WireCoordination(
                LoopNetwork(), clock, [address], self._keeper.credentials
            )
            dependencies = BrokerDependencies(clock=clock, coordination=coordination)
            settings["zookeeper.session.timeout.ms"] = str(SESSION_MS)
            settings[SERVERS] = f"{KEEPER_HOST}:{self._keeper_port}"
        broker = Broker(BrokerConfigs(settings), dependencies)
        await broker.start()
        self.port = broker.endpoints[0].port
        self._is_ready.set()
        try:
            await self._stop.wait()
        finally:
            await broker.stop()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
