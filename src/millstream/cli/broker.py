"""`millstream broker`: one broker in this process, from a settings file."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def broker(
    config: Annotated[
        Path,
        typer.Option(
            "--config", help="Settings: a server.properties or TOML file.", metavar="FILE"
        ),
    ],
    zookeeper: Annotated[
        str | None,
        typer.Option(
            help="ZooKeeper (or keeper) servers, for example h1:2181,h2:2181; overrides"
            " zookeeper.connect. If neither is set, the broker runs standalone.",
            metavar="SERVERS",
        ),
    ] = None,
    lifeline: Annotated[
        int | None,
        typer.Option(
            help="File descriptor to read from; end of file stops the broker.",
            metavar="FD",
            min=0,
            hidden=True,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port for metrics unless metrics.port is set; a free one if it is taken.",
            metavar="PORT",
            min=0,
            max=65535,
            hidden=True,
        ),
    ] = None,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C.

    Prints `ready: host:port` once clients can connect.
    """
    from millstream.broker.process import run  # local: the other commands need no broker

    sys.exit(run(config, zookeeper=zookeeper, lifeline=lifeline, metrics_port=metrics_port))
