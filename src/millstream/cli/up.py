"""`millstream up`: run the brokers of a data directory, one process each, until Ctrl-C."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import brokers_up


def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            help="Number of brokers. Default: as many as the data directory has, 1 if it is new."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first broker; the others use the following ports. 0 picks free ports."
            " Default: the ports of the last start, or 9092 for a new data directory."
        ),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Directory for settings and data.")] = Path(
        brokers_up.DATA_DIR_DEFAULT
    ),
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on; 0.0.0.0 accepts connections from other machines. Default:"
            " the address of the last start, or 127.0.0.1 for a new data directory."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="Broker setting for this start, applied to all brokers; overrides the environment"
            " and server.properties. May be repeated.",
        ),
    ] = None,
    *,
    racks: Annotated[
        bool,
        typer.Option("--racks", help="Set broker.rack of all brokers to this machine's host name."),
    ] = False,
) -> None:
    """Start brokers and run them until Ctrl-C.

    Prints `ready: host:port,...` once clients can connect.
    """
    options = brokers_up.UpOptions(
        brokers=brokers,
        port=port,
        data_dir=data_dir,
        host=host,
        racks=racks,
        configs=tuple(config or ()),
    )
    sys.exit(brokers_up.run(options))
