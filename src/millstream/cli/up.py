"""`millstream up`: brokers of one data directory, each in a process of its own, until Ctrl-C."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.brokers_on_disk import BrokerDirectory, BrokerRunning
from millstream.cli.failure import complain, refuse
from millstream.cli.supervisor import StartFailed, Supervisor


def up(
    brokers: Annotated[int, typer.Option(help="How many; more than one is not there yet.")] = 1,
    port: Annotated[
        int | None, typer.Option(help="Of the first broker; 0 takes a free one. 9092 at first.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(
        "millstream-data"
    ),
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 0.0.0.0 lets other machines in. Loopback at first."
        ),
    ] = None,
) -> None:
    """Start a broker and keep it until Ctrl-C; prints `ready: host:port` when clients can come."""
    if brokers != 1:
        refuse(f"--brokers {brokers}: only one broker is possible until there are clusters")
    if port is not None and not 0 <= port <= 65535:
        refuse(f"--port {port}: a port is between 0 and 65535")
    directory = BrokerDirectory(data_dir.resolve(), 1)
    try:
        directory.prepare(host=host, port=port)
    except BrokerRunning as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename or data_dir}: {error.strerror or error}")
    supervisor = Supervisor(data_dir.resolve(), complain)
    try:
        places = supervisor.start([directory])
        sys.stdout.write(f"ready: {','.join(places)}\n")
        sys.stdout.flush()
        supervisor.wait()
    except StartFailed as error:
        complain(str(error))
        directory.undo()
        raise typer.Exit(1) from None
    finally:
        supervisor.stop()
