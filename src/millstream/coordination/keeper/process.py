"""The keeper as a process: signals, the ready line, the exit code."""

import asyncio
import gc
import ipaddress
import signal
import sys
from contextlib import suppress
from typing import Final

from millstream.coordination.keeper.server import KeeperDependencies, KeeperServer, KeeperSettings
from millstream.model.errors import OperatingError
from millstream.observe import logs
from millstream.runtime import descriptors, fatal
from millstream.runtime.background import ThreadBackground
from millstream.runtime.clock import SystemClock
from millstream.runtime.network import LoopNetwork
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import system_randomness

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
_WORKERS: Final = 2
"""One for the log, one for snapshots."""
_CLOSE_TIMEOUT_S: Final = 5.0

log = logs.get_logger("millstream.coordination.keeper.process")


def system_dependencies() -> KeeperDependencies:
    """The real dependencies, with the running loop."""
    return KeeperDependencies(
        network=LoopNetwork(),
        disk=OsDisk(),
        background=ThreadBackground(asyncio.get_running_loop(), workers=_WORKERS),
        clock=SystemClock(),
        randomness=system_randomness(),
    )


def run(settings: KeeperSettings, *, log_level: str = "INFO") -> int:
    """Serve until SIGTERM or SIGINT, or until the disk fails."""
    logs.configure(level=log_level)
    descriptors.raise_limit()
    with asyncio.Runner() as runner:
        fatal.install(runner.get_loop())
        return runner.run(_serve(settings))


async def _serve(settings: KeeperSettings) -> int:
    dependencies = system_dependencies()
    server = KeeperServer(dependencies, settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.ended.set)
    if not _is_loopback(settings.host):
        log.warning(
            "listening beyond this machine, in plain text: who can read the network can read the"
            " cluster's secret; use a private network or a tunnel",
            host=settings.host,
        )
    try:
        await server.start()
    except (OperatingError, OSError) as error:
        logs.flush()
        sys.stderr.write(f"millstream: the keeper cannot start: {error}\n")
        return EXIT_FAILED
    # What a start has read stays for long: the collector need not scan it again and again.
    gc.freeze()
    with suppress(OSError):  # stdout may be closed
        sys.stdout.write(f"ready: {settings.host}:{server.port}\n")
        sys.stdout.flush()
    await server.ended.wait()
    await server.stop()
    await dependencies.background.close(timeout_s=_CLOSE_TIMEOUT_S)
    logs.flush()
    if server.failure is not None:
        sys.stderr.write(f"millstream: the keeper's disk failed: {server.failure}\n")
        return EXIT_FAILED
    return EXIT_OK


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
