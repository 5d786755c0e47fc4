"""`millstream keeper`: the coordination server in a process of its own."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def keeper(
    data_dir: Annotated[Path, typer.Option(help="Directory for its log and snapshots.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 2181,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0 accepts connections from other machines."),
    ] = "127.0.0.1",
    tick_ms: Annotated[
        int,
        typer.Option(help="ZooKeeper's tickTime: session timeouts are 2 to 20 ticks.", min=10),
    ] = 500,
    snapshot_log_bytes: Annotated[
        int, typer.Option(help="Log size after which a snapshot is taken.", min=4096)
    ] = 16 * 1024 * 1024,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the cluster's secret. Default: cluster.secret in the data directory,"
            " made at the first start."
        ),
    ] = None,
) -> None:
    """Run the built-in coordination service (ZooKeeper protocol) until SIGTERM or Ctrl-C.

    Prints `ready: host:port` once clients can connect.
    """
    # Local imports: the other commands need no server.
    from millstream.cli.failure import complain
    from millstream.coordination.credentials import BadSecretFile, read_credentials
    from millstream.coordination.keeper.process import EXIT_FAILED, run
    from millstream.coordination.keeper.server import KeeperSettings
    from millstream.coordination.keeper.sessions import SessionRules

    credentials = None
    if secret_file is not None:
        try:
            credentials = read_credentials(str(secret_file))
        except (BadSecretFile, OSError) as error:
            complain(f"the keeper cannot start: {error}")
            sys.exit(EXIT_FAILED)
    settings = KeeperSettings(
        directory=str(data_dir.absolute()),
        host=host,
        port=port,
        rules=SessionRules(tick_ms=tick_ms),
        log_roll_bytes=snapshot_log_bytes,
        credentials=credentials,
    )
    sys.exit(run(settings))
