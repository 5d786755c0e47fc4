"""`millstream broker`: one broker in this process, from a settings file."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def broker(
    config: Annotated[
        Path, typer.Option("--config", help="server.properties or a TOML file.", metavar="FILE")
    ],
) -> None:
    """Run one broker until SIGTERM or Ctrl-C; prints `ready: host:port` when clients can come."""
    from millstream.broker.process import run  # only here: the other commands need no broker

    sys.exit(run(config))
