"""The keeper of `millstream up`, and of a test's broker: in this process, on a loop of its own.

Never in a broker's process: a broker that hangs must lose its session, and one that is killed must
not take the keeper down with it.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millstream.coordination.credentials import Credentials
from millstream.coordination.keeper.journal import SECRET_FILE
from millstream.coordination.keeper.process import system_dependencies
from millstream.coordination.keeper.server import KeeperDependencies, KeeperServer, KeeperSettings
from millstream.coordination.keeper.sessions import SessionRules
from millstream.runtime import fatal
from millstream.runtime.loop_thread import LoopThread

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120.0
"""The log and snapshot are read; they are small, but a disk may be slow."""
STOP_TIMEOUT_S: Final = 15.0


class KeeperThread:
    """Call `start` once, then `stop` once, from the main thread."""

    def __init__(
        self, directory: Path, *, rules: SessionRules | None = None, is_guest: bool = False
    ) -> None:
        """`is_guest`: the process is another program's, which a bug of ours must not end."""
        self._directory = directory
        self._rules = rules or SessionRules()
        self._is_guest = is_guest
        self._thread = LoopThread("keeper")
        self._server: KeeperServer | None = None
        self.secret_file = directory / SECRET_FILE
        """For brokers; made by the first start."""
        self.credentials: Credentials
        """What the file has; known after `start`."""
        self._dependencies: KeeperDependencies | None = None

    def start(self, port: int, *, on_failure: Callable[[BaseException], None]) -> int:
        """Serve on the port, or on a free one if it is taken; returns the port.

        Raises OperatingError, OSError. `on_failure` is called on another thread when the keeper's
        disk fails later: no broker of the cluster can continue then.
        """
        try:
            return self._thread.run(self._start(port, on_failure), START_TIMEOUT_S)
        except OSError as error:
            if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        return self._thread.run(self._start(0, on_failure), START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop serving. Open sessions stay in the log; the brokers have closed theirs."""
        if self._server is not None:
            self._thread.run(self._stop(), STOP_TIMEOUT_S)
        self._thread.stop()

    async def _start(self, port: int, on_failure: Callable[[BaseException], None]) -> int:
        if not self._is_guest:
            fatal.install(asyncio.get_running_loop())
        dependencies = system_dependencies()
        settings = KeeperSettings(
            directory=str(self._directory), host=HOST, port=port, rules=self._rules
        )
        server = KeeperServer(dependencies, settings)
        try:
            await server.start()
        except BaseException:
            await dependencies.background.close(timeout_s=1.0)
            raise
        self._server, self._dependencies = server, dependencies
        self._watching = asyncio.get_running_loop().create_task(
            self._watch(server, on_failure), name="watch the keeper"
        )
        self.credentials = server.credentials
        return server.port

    async def _watch(
        self, server: KeeperServer, on_failure: Callable[[BaseException], None]
    ) -> None:
        await server.ended.wait()
        if server.failure is not None:
            on_failure(server.failure)

    async def _stop(self) -> None:
        server, dependencies = self._server, self._dependencies
        if server is not None and dependencies is not None:
            await server.stop()
            await self._watching
            await dependencies.background.close(timeout_s=5.0)
