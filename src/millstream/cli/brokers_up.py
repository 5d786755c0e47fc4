"""What `millstream up` does, apart from the reading of its options."""

import sys
from pathlib import Path
from typing import Final, NamedTuple

from millstream.cli.brokers_on_disk import BrokerDirectory, BrokerRunning
from millstream.cli.failure import complain, refuse
from millstream.cli.supervisor import StartFailed, Supervisor

DATA_DIR_DEFAULT: Final = "millstream-data"
EXIT_FAILED: Final = 1


class Wanted(NamedTuple):
    """The options."""

    brokers: int
    port: int | None
    """None: that of the last time, at first Kafka's."""
    data_dir: Path
    host: str | None


def run(wanted: Wanted) -> int:
    """Start a broker and keep it until a signal; the exit code."""
    if wanted.brokers != 1:
        refuse(f"--brokers {wanted.brokers}: only one broker is possible until there are clusters")
    if wanted.port is not None and not 0 <= wanted.port <= 65535:
        refuse(f"--port {wanted.port}: a port is between 0 and 65535")
    data_dir = wanted.data_dir.resolve()
    directory = BrokerDirectory(data_dir, 1)
    try:
        directory.prepare(host=wanted.host, port=wanted.port)
    except BrokerRunning as error:
        complain(str(error))
        return EXIT_FAILED
    except OSError as error:
        complain(f"{error.filename or wanted.data_dir}: {error.strerror or error}")
        return EXIT_FAILED
    return _keep(directory, Supervisor(data_dir, complain))


def _keep(directory: BrokerDirectory, supervisor: Supervisor) -> int:
    try:
        places = supervisor.start([directory])
        sys.stdout.write(f"ready: {','.join(places)}\n")
        sys.stdout.flush()
        supervisor.wait()
    except StartFailed as error:
        complain(str(error))
        directory.undo()
        return EXIT_FAILED
    finally:
        supervisor.stop()
    return 0
