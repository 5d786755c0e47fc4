"""The Typer application: all commands with their options, help and errors.

`direct` runs the common forms of `broker` and `up` without loading it.
"""

from typing import Annotated

import typer

from millstream.cli import (
    broker,
    consume,
    keeper,
    log_dump,
    log_verify,
    produce,
    topics,
    up,
    version,
)

app = typer.Typer(
    name="millstream",
    help="A commit log that speaks the Kafka protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
log = typer.Typer(help="Inspect the log files of partitions; read-only.")
log.command("verify")(log_verify.verify)
log.command("dump")(log_dump.dump)
app.add_typer(log, name="log", no_args_is_help=True)
app.add_typer(topics.app, name="topics", no_args_is_help=True)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("version")(version.version)
app.command("up")(up.up)
app.command("broker")(broker.broker)
app.command("keeper")(keeper.keeper)


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=version.show, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options without a command; the help text is the app's."""
