"""`millstream up`: brokers of one data directory, each in a process of its own, until Ctrl-C."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import brokers_up


def up(
    brokers: Annotated[int, typer.Option(help="How many; more than one is not there yet.")] = 1,
    port: Annotated[
        int | None, typer.Option(help="Of the first broker; 0 takes a free one. 9092 at first.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(
        brokers_up.DATA_DIR_DEFAULT
    ),
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 0.0.0.0 lets other machines in. Loopback at first."
        ),
    ] = None,
) -> None:
    """Start a broker and keep it until Ctrl-C; prints `ready: host:port` when clients can come."""
    wanted = brokers_up.Wanted(brokers=brokers, port=port, data_dir=data_dir, host=host)
    sys.exit(brokers_up.run(wanted))
