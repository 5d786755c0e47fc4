"""`millstream broker`: one broker in this process, from a settings file."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def broker(
    config: Annotated[
        Path, typer.Option("--config", help="server.properties or a TOML file.", metavar="FILE")
    ],
    zookeeper: Annotated[
        str | None,
        typer.Option(
            help="Servers of the coordination service, h1:2181,h2:2181; without any it is alone.",
            metavar="SERVERS",
        ),
    ] = None,
    lifeline: Annotated[
        int | None,
        typer.Option(
            help="A descriptor to read from; its end stops the broker.",
            metavar="FD",
            min=0,
            hidden=True,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Where metrics are served if no setting says; a free port if it is taken.",
            metavar="PORT",
            min=0,
            max=65535,
            hidden=True,
        ),
    ] = None,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C; prints `ready: host:port` when clients can come."""
    from millstream.broker.process import run  # only here: the other commands need no broker

    sys.exit(run(config, zookeeper=zookeeper, lifeline=lifeline, metrics_port=metrics_port))
