"""`millstream up`: brokers of one data directory, each in a process of its own, until Ctrl-C."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import brokers_up


def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            help="How many; several are a cluster. As many as the data directory has, at first 1."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Of the first broker, the others follow; 0 takes free ones. 9092 at first."
        ),
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
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="A setting of all brokers, for this start; wins over the environment and over"
            " their server.properties. May be repeated.",
        ),
    ] = None,
    *,
    racks: Annotated[
        bool,
        typer.Option("--racks", help="Set broker.rack of all brokers to the machine's name."),
    ] = False,
) -> None:
    """Start brokers and keep them until Ctrl-C; prints `ready: host:port,...` for clients."""
    wanted = brokers_up.Wanted(
        brokers=brokers,
        port=port,
        data_dir=data_dir,
        host=host,
        racks=racks,
        configs=tuple(config or ()),
    )
    sys.exit(brokers_up.run(wanted))
