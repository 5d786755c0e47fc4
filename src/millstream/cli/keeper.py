"""`millstream keeper`: the embedded coordination server, alone in this process."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def keeper(
    data_dir: Annotated[Path, typer.Option(help="Where its log and snapshots are kept.")],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 2181,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    tick_ms: Annotated[
        int,
        typer.Option(
            help="ZooKeeper's tickTime: sessions live 2 to 20 of them without a word.", min=10
        ),
    ] = 500,
    snapshot_log_bytes: Annotated[
        int, typer.Option(help="Size of the log after which a snapshot replaces it.", min=4096)
    ] = 16 * 1024 * 1024,
) -> None:
    """Serve ZooKeeper clients until SIGTERM or Ctrl-C; prints `ready: host:port` before."""
    # Only here: the other commands need no server.
    from millstream.coordination.keeper.process import run
    from millstream.coordination.keeper.server import KeeperSettings
    from millstream.coordination.keeper.sessions import SessionRules

    settings = KeeperSettings(
        directory=str(data_dir.absolute()),
        host=host,
        port=port,
        rules=SessionRules(tick_ms=tick_ms),
        log_roll_bytes=snapshot_log_bytes,
    )
    sys.exit(run(settings))
