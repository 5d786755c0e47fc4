"""What `millstream up` does, apart from the reading of its options."""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
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
from millstream.cli.supervisor import StartFailed, StartStopped, Supervisor
from millstream.model.errors import OperatingError

if TYPE_CHECKING:
    from millstream.cli.keeper_thread import KeeperThread

DATA_DIR_DEFAULT: Final = "millstream-data"
EXIT_FAILED: Final = 1
EXIT_STAYS_ALONE: Final = 3
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


def run(wanted: Wanted) -> int:
    """Start brokers and keep them until a signal; the exit code."""
    if wanted.port is not None and not 0 <= wanted.port <= 65535:
        refuse(f"--port {wanted.port}: a port is between 0 and 65535")
    data_dir = wanted.data_dir.resolve()
    found = [one for one in brokers_of(data_dir) if one.settings_file.exists()]
    place = Place(data_dir, found)
    count = _count(wanted, place)
    directories = [BrokerDirectory(data_dir, number + 1) for number in range(count)]
    if not _is_prepared(wanted, directories, cluster_size=count):
        return EXIT_FAILED
    if place.has_servers:
        return _keep(directories, Supervisor(data_dir, complain))
    was_cluster = place.is_cluster
    code = _keep_with_keeper(place, directories)
    if code != EXIT_STAYS_ALONE or was_cluster:
        return code
    shutil.rmtree(place.keeper, ignore_errors=True)
    if count > 1:
        return EXIT_FAILED
    complain(f"{wanted.data_dir} stays one broker's alone")
    if not _is_prepared(wanted, directories, cluster_size=None):
        return EXIT_FAILED
    return _keep(directories, Supervisor(data_dir, complain))


def _is_prepared(
    wanted: Wanted, directories: Sequence[BrokerDirectory], *, cluster_size: int | None
) -> bool:
    """Write the settings of all; says what hinders it."""
    try:
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
    except BrokerRunning as error:
        complain(str(error))
    except OSError as error:
        complain(f"{error.filename or wanted.data_dir}: {error.strerror or error}")
    else:
        return True
    return False


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


def _keep(
    directories: Sequence[BrokerDirectory], supervisor: Supervisor, *, first_alone: bool = False
) -> int:
    """Serve until told to stop; with `first_alone` the others start when the first one serves."""
    groups = [directories[:1], directories[1:]] if first_alone else [directories]
    try:
        places = [place for group in groups for place in supervisor.start(group)]
        sys.stdout.write(f"ready: {','.join(places)}\n")
        sys.stdout.flush()
        supervisor.wait()
    except StartStopped:
        _undo(directories)
    except StartFailed as error:
        complain(str(error))
        _undo(directories)
        return EXIT_STAYS_ALONE if error.exit_code == EXIT_STAYS_ALONE else EXIT_FAILED
    finally:
        supervisor.stop()
    return 0


def _undo(directories: Sequence[BrokerDirectory]) -> None:
    for one in directories:
        one.undo()


def _keep_with_keeper(place: Place, directories: Sequence[BrokerDirectory]) -> int:
    # Only here: a broker with servers of its own needs none of it.
    from millstream.cli.keeper_thread import HOST, KeeperThread

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
        complain(f"the keeper cannot start: {error}")
        _undo(directories)
        supervisor.stop()
        return EXIT_FAILED
    for one in directories:
        one.set_keeper(f"{HOST}:{port}")
    try:
        code = _keep(directories, supervisor, first_alone=first_alone)
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
