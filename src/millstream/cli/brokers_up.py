"""What `millstream up` does, apart from the reading of its options."""

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
from millstream.cli.supervisor import StartFailed, Supervisor
from millstream.model.errors import OperatingError

if TYPE_CHECKING:
    from millstream.cli.keeper_thread import KeeperThread

DATA_DIR_DEFAULT: Final = "millstream-data"
EXIT_FAILED: Final = 1
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


def run(wanted: Wanted) -> int:
    """Start brokers and keep them until a signal; the exit code."""
    if wanted.port is not None and not 0 <= wanted.port <= 65535:
        refuse(f"--port {wanted.port}: a port is between 0 and 65535")
    data_dir = wanted.data_dir.resolve()
    found = [one for one in brokers_of(data_dir) if one.settings_file.exists()]
    count = _count(wanted, found, is_cluster=(data_dir / KEEPER_FOLDER).exists())
    directories = [BrokerDirectory(data_dir, number + 1) for number in range(count)]
    is_cluster = count > 1
    try:
        for number, one in enumerate(directories):
            port = _port_of(wanted, number, directories)
            one.prepare(host=wanted.host, port=port, cluster_size=count if is_cluster else None)
    except BrokerRunning as error:
        complain(str(error))
        return EXIT_FAILED
    except OSError as error:
        complain(f"{error.filename or wanted.data_dir}: {error.strerror or error}")
        return EXIT_FAILED
    supervisor = Supervisor(data_dir, complain)
    if not is_cluster:
        return _keep(directories, supervisor)
    return _keep_with_keeper(data_dir / KEEPER_FOLDER, directories, supervisor)


def _count(wanted: Wanted, found: Sequence[BrokerDirectory], *, is_cluster: bool) -> int:
    """How many brokers there shall be; refuses what the data directory cannot become."""
    count = wanted.brokers if wanted.brokers is not None else max(1, len(found))
    if not 1 <= count <= BROKERS_MAX:
        refuse(f"--brokers {count}: between 1 and {BROKERS_MAX} are possible")
    if found and not is_cluster and count > 1:
        refuse(
            f"--brokers {count}: {wanted.data_dir} belongs to one broker, which keeps its metadata"
            " in its own files; a cluster begins with a data directory of its own"
        )
    if is_cluster and count < len(found):
        refuse(
            f"--brokers {count}: {wanted.data_dir} belongs to {len(found)} brokers; all of them are"
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


def _keep(directories: Sequence[BrokerDirectory], supervisor: Supervisor) -> int:
    """Serve until told to stop."""
    try:
        places = supervisor.start(directories)
        sys.stdout.write(f"ready: {','.join(places)}\n")
        sys.stdout.flush()
        supervisor.wait()
    except StartFailed as error:
        complain(str(error))
        for one in directories:
            one.undo()
        return EXIT_FAILED
    finally:
        supervisor.stop()
    return 0


def _keep_with_keeper(
    folder: Path, directories: Sequence[BrokerDirectory], supervisor: Supervisor
) -> int:
    # Only here: one broker alone needs none of it.
    from millstream.cli.keeper_thread import HOST, KeeperThread

    keeper = KeeperThread(folder)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        supervisor.end()

    try:
        former = directories[0].keeper_place.rpartition(":")[2]
        port = keeper.start(int(former) if former.isdigit() else 0, on_failure=failed)
    except (OperatingError, OSError) as error:
        complain(f"the keeper cannot start: {error}")
        for one in directories:
            one.undo()
        supervisor.stop()
        return EXIT_FAILED
    for one in directories:
        one.set_keeper(f"{HOST}:{port}")
    try:
        code = _keep(directories, supervisor)
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
