"""The work of `millstream up`; `up` and `direct` parse its options."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.brokers_on_disk import (
    KEEPER_FOLDER,
    PORT_DEFAULT,
    BrokerDirectory,
    BrokerRunning,
    brokers_of,
)
from millstream.cli.failure import complain, refuse
from millstream.cli.replica_defaults import disagreements
from millstream.cli.supervisor import Launch, Ready, StartFailed, StartStopped, Supervisor
from millstream.cli.up_settings import BadOverride, launches, parse_overrides
from millstream.model.config.errors import InvalidConfig
from millstream.model.errors import OperatingError

if TYPE_CHECKING:
    from millstream.cli.keeper_thread import KeeperThread

DATA_DIR_DEFAULT: Final = "millstream-data"
EXIT_FAILED: Final = 1
EXIT_NOT_OF_THIS_CLUSTER: Final = 3
"""Exit code of a broker whose log directories cannot join this cluster (`broker/process.py`)."""
BROKERS_MAX: Final = 64
"""On one machine, each with a process of its own; more is a mistyped number."""


class UpOptions(NamedTuple):
    """The options."""

    brokers: int | None
    """None: as many as the data directory has, or one if it is new."""
    port: int | None
    """None: that of the last start, or Kafka's 9092."""
    data_dir: Path
    host: str | None
    racks: bool = False
    """Whether the machine's name is the rack of all brokers."""
    configs: tuple[str, ...] = ()
    """`KEY=VALUE`, for all brokers, this start only."""


class DataDirState(NamedTuple):
    """A data directory as it was found before the start."""

    path: Path
    brokers: Sequence[BrokerDirectory]
    """Those with a settings file."""

    @property
    def keeper(self) -> Path:
        return self.path / KEEPER_FOLDER

    @property
    def is_cluster(self) -> bool:
        return self.keeper.exists()

    @property
    def has_servers(self) -> bool:
        """Whether its brokers use an external coordination service."""
        return not self.is_cluster and any(one.keeper_address for one in self.brokers)


class Start(NamedTuple):
    """What is started, and in which data directory."""

    state: DataDirState
    directories: Sequence[BrokerDirectory]
    launches: Sequence[Launch]


class UpFailed(Exception):
    """Nothing was started, or everything has been stopped again."""

    def __init__(self, error: Exception, *, prefix: str = "") -> None:
        self.error, self.prefix = error, prefix
        super().__init__(f"{prefix}{error}")


def run(options: UpOptions) -> int:
    """Start brokers and run them until a signal; returns the exit code."""
    if options.port is not None and not 0 <= options.port <= 65535:
        refuse(f"--port {options.port}: must be between 0 and 65535")
    try:
        return _run(options)
    except UpFailed as failed:
        # Imported only on failure, and printed last: output of stopping brokers must not bury it.
        from millstream.cli.up_failure import explanation

        for line in explanation(failed.error, prefix=failed.prefix):
            complain(line)
        return EXIT_FAILED


def _run(options: UpOptions) -> int:
    data_dir = options.data_dir.resolve()
    with _failing(options.data_dir):
        found = [one for one in brokers_of(data_dir) if one.settings_file.exists()]
        state = DataDirState(data_dir, found)
        has_servers = state.has_servers
    count = _count(options, state)
    try:
        overrides = parse_overrides(options.configs, brokers=count)
    except BadOverride as error:
        refuse(str(error))
    directories = [BrokerDirectory(data_dir, number + 1) for number in range(count)]
    _prepare(options, directories, cluster_size=count)
    with _failing(options.data_dir):
        start = Start(
            state, directories, launches(directories, overrides, os.environ, is_quiet=_is_quiet())
        )
    if has_servers:
        return _keep(start, Supervisor(data_dir, complain))
    return _keep_as_cluster(options, start)


def _keep_as_cluster(options: UpOptions, start: Start) -> int:
    """With a keeper; a single broker that cannot join a cluster stays standalone."""
    state, directories = start.state, start.directories
    was_cluster = state.is_cluster
    try:
        return _keep_with_keeper(start)
    except UpFailed as failed:
        if was_cluster or not _stays_standalone(failed.error):
            raise
        shutil.rmtree(state.keeper, ignore_errors=True)
        if len(directories) > 1:
            raise
        complain(str(failed))
    complain(f"{options.data_dir}: the broker stays standalone")
    _prepare(options, directories, cluster_size=None)
    return _keep(start, Supervisor(state.path, complain))


def _stays_standalone(error: Exception) -> bool:
    return isinstance(error, StartFailed) and error.exit_code == EXIT_NOT_OF_THIS_CLUSTER


@contextmanager
def _failing(data_dir: Path) -> Iterator[None]:
    """Convert errors before a broker runs, which could report them itself, into UpFailed."""
    try:
        yield
    except InvalidConfig as error:
        raise UpFailed(error, prefix=f"in a server.properties of {data_dir}: ") from error
    except (BrokerRunning, OSError) as error:
        raise UpFailed(error) from error


def _prepare(
    options: UpOptions, directories: Sequence[BrokerDirectory], *, cluster_size: int | None
) -> None:
    """Write the settings of all brokers."""
    with _failing(options.data_dir):
        for number, one in enumerate(directories):
            port = _port_of(options, number, directories)
            changes = one.prepare(host=options.host, port=port, cluster_size=cluster_size)
            for name, value in changes.items():
                complain(
                    f"broker {one.broker_id}: {name} is now {value}, for {cluster_size} brokers"
                )
            if options.racks:
                one.set_rack(socket.gethostname())
        files = {one.broker_id: one.settings for one in directories}
        for line in disagreements(files, os.environ):
            complain(line)


def _count(options: UpOptions, state: DataDirState) -> int:
    """How many brokers to start; refuses a number that does not fit the data directory."""
    found = len(state.brokers)
    count = options.brokers if options.brokers is not None else max(1, found)
    if not 1 <= count <= BROKERS_MAX:
        refuse(f"--brokers {count}: must be between 1 and {BROKERS_MAX}")
    if state.has_servers and count > found:
        refuse(
            f"--brokers {count}: the brokers of {options.data_dir} use an external coordination"
            " service (zookeeper.connect); add a broker with `millstream broker`"
        )
    if count < found:
        refuse(
            f"--brokers {count}: {options.data_dir} has the data of {found} brokers; all of them"
            f" are needed to serve every partition: use --brokers {found}, or leave it out"
        )
    return count


def _port_of(options: UpOptions, number: int, directories: Sequence[BrokerDirectory]) -> int | None:
    """The first broker's is requested or kept; those of new brokers count up from it."""
    if options.port is not None:
        return options.port + number if options.port else 0
    if directories[number].settings_file.exists():
        return None
    first = directories[0]
    known = first.port if number and first.settings_file.exists() else PORT_DEFAULT
    return known + number if known else 0


def _keep(start: Start, supervisor: Supervisor, *, waits_for_first: bool = False) -> int:
    """Serve until a signal; with `waits_for_first` the others start when the first one serves."""
    is_terminal = os.isatty(1)
    try:
        ones = start.launches
        groups = [ones[:1], ones[1:]] if waits_for_first else [ones]
        brokers = [one for group in groups for one in supervisor.start(group)]
        _print(_banner(start, brokers) if is_terminal else _ready_line(brokers))
        supervisor.wait()
        if is_terminal:
            _print("\rstopping the brokers\n")  # over the ^C
    except StartStopped:
        _undo(start.directories)
    except StartFailed as error:
        _undo(start.directories)
        raise UpFailed(error) from error
    finally:
        supervisor.stop()
    return 0


def _is_quiet() -> bool:
    """On a terminal only problems are shown; a file or a program gets every log line."""
    return os.isatty(1) and os.isatty(2)


def _ready_line(brokers: Sequence[Ready]) -> str:
    return f"ready: {','.join(state for one in brokers for state in one.addresses)}\n"


def _banner(start: Start, brokers: Sequence[Ready]) -> str:
    from millstream.cli.banner import banner, command_name

    command = command_name(sys.argv[0])
    return banner(brokers, start.state.path, command=command, is_new=not start.state.brokers)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _undo(directories: Sequence[BrokerDirectory]) -> None:
    for one in directories:
        one.undo()


def _keep_with_keeper(start: Start) -> int:
    # Local import: with an external coordination service none of it is needed.
    from millstream.cli.keeper_thread import HOST, KeeperThread
    from millstream.observe import logs

    logs.configure(level="WARN")  # of the keeper, which has no process of its own
    state, directories = start.state, start.directories
    # A standalone broker bootstraps the cluster from its metadata: no other may register first.
    waits_for_first = not state.is_cluster and bool(state.brokers)
    supervisor = Supervisor(state.path, complain)
    keeper = KeeperThread(state.keeper)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        supervisor.end()

    try:
        former = directories[0].keeper_address.rpartition(":")[2]
        port = keeper.start(int(former) if former.isdigit() else 0, on_failure=failed)
    except (OperatingError, OSError) as error:
        _undo(directories)
        supervisor.stop()
        raise UpFailed(error, prefix="the keeper cannot start: ") from error
    for one in directories:
        one.set_keeper(f"{HOST}:{port}", keeper.secret_file)
    try:
        code = _keep(start, supervisor, waits_for_first=waits_for_first)
    finally:
        _stop_keeper(keeper)
    for failure in failures:
        complain(f"the keeper's disk failed: {failure}")
    return EXIT_FAILED if failures else code


def _stop_keeper(keeper: "KeeperThread") -> None:
    try:
        keeper.stop()
    except (OperatingError, TimeoutError) as error:
        complain(f"the keeper did not stop cleanly: {error}")
