"""A broker as a process: settings from a file, signals, the pid file, the ready line.

`millstream broker`, `millstream up` and `python -m millstream.broker.process --config FILE` run it.
It imports only what a broker needs, because a start is measured in tenths of a second.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.cluster.first_start import check_first_start
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.net.listeners import UNSPECIFIED_HOSTS, ListenerAddress, parse_listeners
from millstream.controller.errors import DirectoryNotOfThisCluster
from millstream.model.config.errors import InvalidConfig
from millstream.model.config.properties import load_settings
from millstream.model.errors import AllDirectoriesFailed, OperatingError
from millstream.model.limits import OPEN_FILES_MAX
from millstream.observe import logs
from millstream.observe.process import LinuxProcess
from millstream.runtime import descriptors, fatal, mounts
from millstream.runtime.loop import DirectLoop
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.private_files import write_private

_SERVERS: Final = "zookeeper.connect"
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_OF_THIS_CLUSTER: Final = 3
"""The log directories do not belong to this cluster; a standalone broker can use them."""

EXIT_NO_DIRECTORY: Final = 4
"""Every log directory of a broker of a cluster failed while it ran."""

log = logs.get_logger("millstream.broker.process")


def main(arguments: Sequence[str]) -> int:
    """Run a broker until it is stopped; returns the exit code."""
    if len(arguments) != 2 or arguments[0] != "--config":
        sys.stderr.write("usage: python -m millstream.broker.process --config FILE\n")
        return EXIT_USAGE
    return run(Path(arguments[1]))


def run(
    config_file: Path,
    *,
    zookeeper: str | None = None,
    lifeline: int | None = None,
    metrics_port: int | None = None,
) -> int:
    """Run the broker that the file describes, in the cluster of these servers if any are given.

    `lifeline`: a descriptor that is closed when the parent process ends; the broker stops then. The
    parent reads the address of the metrics and the cause of a failed start on standard output.
    `metrics_port`: where metrics are served if no setting says; a free port if this one is taken.
    """
    starter = Starter(lifeline, metrics_port)
    try:
        configs = read_configs(config_file, zookeeper=zookeeper)
    except (InvalidConfig, OSError) as error:
        _say_failure(error, starter)
        return EXIT_USAGE
    node = configs.get_int("broker.id") if configs.get_list(_SERVERS) else None
    logs.configure(level=configs.get_text("log.level"), node=node)
    with asyncio.Runner(loop_factory=DirectLoop) as runner:
        fatal.install(runner.get_loop())
        return runner.run(_serve(configs, starter))


def read_configs(config_file: Path, *, zookeeper: str | None = None) -> BrokerConfigs:
    """Settings of a file with what the environment overrides; raises InvalidConfig or OSError."""
    settings = load_settings(config_file, os.environ)
    for warning in settings.warnings:
        sys.stderr.write(f"millstream: {warning}\n")
    values = settings.values if zookeeper is None else {**settings.values, _SERVERS: zookeeper}
    configs = BrokerConfigs(values)
    for name in ("listeners", "advertised.listeners"):
        parse_listeners(name, configs.get_written(name))
    return configs


class Starter(NamedTuple):
    """What `millstream up` gives a broker that it starts; nothing for one started by hand."""

    lifeline: int | None = None
    metrics_port: int | None = None


class _StopRequest:
    """Whether the broker must stop, and why."""

    def __init__(self, lifeline: int | None) -> None:
        self.event = asyncio.Event()
        self.is_orphan = False
        """The parent process is gone, and with it the other brokers and the keeper it started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.event.set)
        if lifeline is not None:
            loop.add_reader(lifeline, self._read, lifeline)

    def _read(self, lifeline: int) -> None:
        if not os.read(lifeline, 64):
            asyncio.get_running_loop().remove_reader(lifeline)
            self.is_orphan = True
            self.event.set()


async def _serve(configs: BrokerConfigs, starter: Starter) -> int:
    stop = _StopRequest(starter.lifeline)
    try:
        check_first_start(OsDisk(), configs.get_list("log.dirs"), mounts.unmounted_point)
        limit = descriptors.raise_limit()
        files = descriptors.segment_files_max(limit, lowest=OPEN_FILES_MAX)
        dependencies = BrokerDependencies(
            process=LinuxProcess(),
            host_name=socket.gethostname(),
            open_files_max=files,
            connections_max=descriptors.connections_max(limit, files),
            metrics_port=starter.metrics_port,
            return_memory=_return_memory,
        )
        broker = Broker(configs, dependencies)
        if not await _start(broker, stop.event):
            return EXIT_OK
    except (OperatingError, OSError) as error:
        logs.flush()
        _say_failure(error, starter, prefix="the broker cannot start: ")
        return (
            EXIT_NOT_OF_THIS_CLUSTER
            if isinstance(error, DirectoryNotOfThisCluster)
            else EXIT_FAILED
        )
    # Objects from the start stay forever: the collector, off until now, need not scan them.
    gc.freeze()
    gc.enable()
    with pid_file(configs.get_text("pid.file")):
        try:
            if starter.lifeline is not None and broker.metrics_port is not None:
                _say_metrics(broker.endpoints[0].host, broker.metrics_port)
            say_ready(broker.endpoints)
            _tune_allocator()
            await broker.serve_until(stop.event)
        finally:
            if stop.is_orphan:
                log.warning("parent process is gone; shutting down")
            # A broker that failed has nothing to hand over that others could still fetch.
            await broker.stop(hands_over=not stop.is_orphan and broker.failure is None)
            logs.flush()
    if broker.failure is not None:
        sys.stderr.write(f"millstream: the broker failed: {broker.failure}\n")
        is_disks = isinstance(broker.failure, AllDirectoriesFailed)
        return EXIT_NO_DIRECTORY if is_disks else EXIT_FAILED
    return EXIT_OK


async def _start(broker: Broker, stop: asyncio.Event) -> bool:
    """Whether it was started; False if `stop` was set first: a start may wait for other brokers."""
    starting = asyncio.get_running_loop().create_task(broker.start(), name="start")
    stopping = asyncio.get_running_loop().create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return False
    await starting
    return True


def _tune_allocator() -> None:
    """After the ready line: a start need neither wait for it nor import its module."""
    from millstream.runtime import memory

    memory.return_large_blocks()


def _return_memory() -> None:
    from millstream.runtime import memory

    memory.return_free_pages()


@contextmanager
def pid_file(path: str) -> Iterator[None]:
    """Keep the process id in a file while the block runs; "" for no file."""
    if not path:
        yield
        return
    write_private(path, f"{os.getpid()}\n")
    try:
        yield
    finally:
        with suppress(OSError):
            Path(path).unlink()


def say_ready(endpoints: Sequence[ListenerAddress]) -> None:
    """Write the ready line, the last line on standard output."""
    addresses = ",".join(one._replace(host=_reachable(one.host)).host_port for one in endpoints)
    with suppress(OSError):  # standard output may be closed
        sys.stdout.write(f"ready: {addresses}\n")
        sys.stdout.flush()


def _say_metrics(host: str, port: int) -> None:
    """For `millstream up`, before the ready line."""
    place = ListenerAddress("", _reachable(host), port).host_port
    with suppress(OSError):
        sys.stdout.write(f"metrics: {place}\n")


def _say_failure(error: Exception, starter: Starter, *, prefix: str = "") -> None:
    """To the parent, which prints it when the other brokers have stopped; else to stderr."""
    from millstream.broker.start_failure import failure_of

    failure = failure_of(error)
    if starter.lifeline is not None:
        with suppress(OSError):
            sys.stdout.write(failure.line())
            sys.stdout.flush()
            return
    sys.stderr.write(f"millstream: {prefix}{failure.reason}\n")


def _reachable(host: str) -> str:
    if host in UNSPECIFIED_HOSTS:
        return "::1" if host == "::" else "127.0.0.1"
    return host


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
