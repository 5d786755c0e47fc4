"""Entry point of the `millstream` command: puts the commands together, nothing else."""

import sys
from typing import Annotated

import typer

from millstream.cli import broker, log_dump, log_verify, up, version
from millstream.cli.failure import EXIT_USAGE, complain
from millstream.kernels._select import CHOICE_VARIABLE
from millstream.model.invariant import InvariantViolated

app = typer.Typer(
    name="millstream",
    help="A commit log that speaks the Kafka protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
log = typer.Typer(help="Look into the log files of partitions; nothing is changed.")
log.command("verify")(log_verify.verify)
log.command("dump")(log_dump.dump)
app.add_typer(log, name="log", no_args_is_help=True)
app.command("version")(version.version)
app.command("up")(up.up)
app.command("broker")(broker.broker)


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=version.show, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Hold what can be given without a command; the help is the app's."""


def run() -> None:
    """Run the command line of this process."""
    try:
        app()
    except ImportError as error:
        # A wrong or impossible choice of kernels is the user's to mend, any other is a bug.
        if CHOICE_VARIABLE not in str(error):
            raise
        complain(str(error))
        sys.exit(EXIT_USAGE)
    except InvariantViolated as error:
        # Imported only now: it needs asyncio, which takes longer than all of the rest.
        from millstream.runtime.fatal import end_process

        end_process(error)


if __name__ == "__main__":
    run()
