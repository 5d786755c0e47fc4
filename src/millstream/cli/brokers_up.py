"""What `millstream up` does, apart from the reading of its options."""

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
"""Of a broker whose log directories are not for this cluster; as `broker/process.py` has it."""
BROKERS_MAX: Final = 64
"""On one machine, each with a process of its own; more is a mistyped number."""


class Wanted(NamedTuple):
    """The options."""

    brokers: int | None
    """None: as many as the data directory has, at first one."""
    port: int | None
    """None: that of the last time, at first Kafka's."""
    data_dir: Path
    host: str | None
    racks: bool = False
    """Whether the machine's name is the rack of all brokers."""
    configs: tuple[str, ...] = ()
    """`KEY=VALUE` each, for all brokers of this start."""


class Place(NamedTuple):
    """A data directory as it was found."""

    path: Path
    brokers: Sequence[BrokerDirectory]
    """Those with settings."""

    @property
    def keeper(self) -> Path:
        return self.path / KEEPER_FOLDER

    @property
    def is_cluster(self) -> bool:
        return self.keeper.exists()

    @property
    def has_servers(self) -> bool:
        """Whether its broker has a coordination service that is not ours."""
        return not self.is_cluster and any(one.keeper_place for one in self.brokers)


class Start(NamedTuple):
    """What is started where."""

    place: Place
    directories: Sequence[BrokerDirectory]
    launches: Sequence[Launch]


class UpFailed(Exception):
    """Nothing was started, or all of it has been stopped again."""

    def __init__(self, error: Exception, *, prefix: str = "") -> None:
        self.error, self.prefix = error, prefix
        super().__init__(f"{prefix}{error}")


def run(wanted: Wanted) -> int:
    """Start brokers and keep them until a signal; the exit code."""
    if wanted.port is not None and not 0 <= wanted.port <= 65535:
        refuse(f"--port {wanted.port}: a port is between 0 and 65535")
    try:
        return _run(wanted)
    except UpFailed as failed:
        # Only here, and last of all: what is written while brokers stop must not bury the cause.
        from millstream.cli.up_failure import explanation

        for line in explanation(failed.error, prefix=failed.prefix):
            complain(line)
        return EXIT_FAILED


def _run(wanted: Wanted) -> int:
    data_dir = wanted.data_dir.resolve()
    with _failing(wanted.data_dir):
        found = [one for one in brokers_of(data_dir) if one.settings_file.exists()]
        place = Place(data_dir, found)
        has_servers = place.has_servers
    count = _count(wanted, place)
    try:
        overrides = parse_overrides(wanted.configs, brokers=count)
    except BadOverride as error:
        refuse(str(error))
    directories = [BrokerDirectory(data_dir, number + 1) for number in range(count)]
    _prepare(wanted, directories, cluster_size=count)
    with _failing(wanted.data_dir):
        start = Start(
            place, directories, launches(directories, overrides, os.environ, is_quiet=_is_quiet())
        )
    if has_servers:
        return _keep(start, Supervisor(data_dir, complain))
    return _keep_as_cluster(wanted, start)


def _keep_as_cluster(wanted: Wanted, start: Start) -> int:
    """With a keeper; one broker that cannot be in a cluster is kept alone, as it was."""
    place, directories = start.place, start.directories
    was_cluster = place.is_cluster
    try:
        return _keep_with_keeper(start)
    except UpFailed as failed:
        if was_cluster or not _stays_alone(failed.error):
            raise
        shutil.rmtree(place.keeper, ignore_errors=True)
        if len(directories) > 1:
            raise
        complain(str(failed))
    complain(f"{wanted.data_dir} stays one broker's alone")
    _prepare(wanted, directories, cluster_size=None)
    return _keep(start, Supervisor(place.path, complain))


def _stays_alone(error: Exception) -> bool:
    return isinstance(error, StartFailed) and error.exit_code == EXIT_NOT_OF_THIS_CLUSTER


@contextmanager
def _failing(data_dir: Path) -> Iterator[None]:
    """What hinders a start before there is a broker that could tell it."""
    try:
        yield
    except InvalidConfig as error:
        raise UpFailed(error, prefix=f"a server.properties in {data_dir}, ") from error
    except (BrokerRunning, OSError) as error:
        raise UpFailed(error) from error


def _prepare(
    wanted: Wanted, directories: Sequence[BrokerDirectory], *, cluster_size: int | None
) -> None:
    """Write the settings of all."""
    with _failing(wanted.data_dir):
        for number, one in enumerate(directories):
            port = _port_of(wanted, number, directories)
            changes = one.prepare(host=wanted.host, port=port, cluster_size=cluster_size)
            for name, value in changes.items():
                complain(
                    f"broker {one.broker_id}: {name} is {value} now, for {cluster_size} brokers"
                )
            if wanted.racks:
                one.set_rack(socket.gethostname())
        files = {one.broker_id: one.settings for one in directories}
        for line in disagreements(files, os.environ):
            complain(line)


def _count(wanted: Wanted, place: Place) -> int:
    """How many brokers there shall be; refuses what the data directory cannot become."""
    found = len(place.brokers)
    count = wanted.brokers if wanted.brokers is not None else max(1, found)
    if not 1 <= count <= BROKERS_MAX:
        refuse(f"--brokers {count}: between 1 and {BROKERS_MAX} are possible")
    if place.has_servers and count > found:
        refuse(
            f"--brokers {count}: the brokers of {wanted.data_dir} have a coordination service of"
            " their own; add one with `millstream broker`"
        )
    if count < found:
        refuse(
            f"--brokers {count}: {wanted.data_dir} belongs to {found} brokers; all of them are"
            " needed to have every partition"
        )
    return count


def _port_of(wanted: Wanted, number: int, directories: Sequence[BrokerDirectory]) -> int | None:
    """The first broker's is asked for or kept; those of new ones follow it."""
    if wanted.port is not None:
        return wanted.port + number if wanted.port else 0
    if directories[number].settings_file.exists():
        return None
    first = directories[0]
    known = first.port if number and first.settings_file.exists() else PORT_DEFAULT
    return known + number if known else 0


def _keep(start: Start, supervisor: Supervisor, *, first_alone: bool = False) -> int:
    """Serve until told to stop; with `first_alone` the others start when the first one serves."""
    is_terminal = os.isatty(1)
    try:
        ones = start.launches
        groups = [ones[:1], ones[1:]] if first_alone else [ones]
        brokers = [one for group in groups for one in supervisor.start(group)]
        _say(_banner(start, brokers) if is_terminal else _ready_line(brokers))
        supervisor.wait()
        if is_terminal:
            _say("\rstopping the brokers\n")  # over the ^C
    except StartStopped:
        _undo(start.directories)
    except StartFailed as error:
        _undo(start.directories)
        raise UpFailed(error) from error
    finally:
        supervisor.stop()
    return 0


def _is_quiet() -> bool:
    """Who looks at a terminal wants to know what is wrong; a file or a program gets every line."""
    return os.isatty(1) and os.isatty(2)


def _ready_line(brokers: Sequence[Ready]) -> str:
    return f"ready: {','.join(place for one in brokers for place in one.places)}\n"


def _banner(start: Start, brokers: Sequence[Ready]) -> str:
    from millstream.cli.banner import banner, command_name

    command = command_name(sys.argv[0])
    return banner(brokers, start.place.path, command=command, is_new=not start.place.brokers)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _undo(directories: Sequence[BrokerDirectory]) -> None:
    for one in directories:
        one.undo()


def _keep_with_keeper(start: Start) -> int:
    # Only here: a broker with servers of its own needs none of it.
    from millstream.cli.keeper_thread import HOST, KeeperThread

    place, directories = start.place, start.directories
    # A broker that was alone founds the cluster: nobody else may come first.
    first_alone = not place.is_cluster and bool(place.brokers)
    supervisor = Supervisor(place.path, complain)
    keeper = KeeperThread(place.keeper)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        supervisor.end()

    try:
        former = directories[0].keeper_place.rpartition(":")[2]
        port = keeper.start(int(former) if former.isdigit() else 0, on_failure=failed)
    except (OperatingError, OSError) as error:
        _undo(directories)
        supervisor.stop()
        raise UpFailed(error, prefix="the keeper cannot start: ") from error
    for one in directories:
        one.set_keeper(f"{HOST}:{port}")
    try:
        code = _keep(start, supervisor, first_alone=first_alone)
    finally:
        _stop_keeper(keeper)
    for failure in failures:
        complain(f"the keeper's disk failed: {failure}")
    return EXIT_FAILED if failures else code


def _stop_keeper(keeper: "KeeperThread") -> None:
    try:
        keeper.stop()
    except (OperatingError, TimeoutError) as error:
        complain(f"the keeper did not stop in order: {error}")
