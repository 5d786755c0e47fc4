"""Entry point of the `millstream` command: puts the commands together, nothing else."""

import typer

from millstream.cli import broker, log_dump, log_verify, version
from millstream.model.invariant import InvariantViolated

app = typer.Typer(
    name="millstream",
    help="A distributed, replicated commit log that speaks the Kafka protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
log = typer.Typer(help="Look into the log files of partitions; nothing is changed.")
log.command("verify")(log_verify.verify)
log.command("dump")(log_dump.dump)
app.add_typer(log, name="log", no_args_is_help=True)
app.command("version")(version.version)
# The options of a command that is not there yet are anyone's guess: take them all.
takes_anything = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("up", context_settings=takes_anything)(broker.up)
app.command("broker", context_settings=takes_anything)(broker.broker)


def run() -> None:
    """Run the command line of this process."""
    try:
        app()
    except InvariantViolated as error:
        # Imported only now: it needs asyncio, which takes longer than all of the rest.
        from millstream.runtime.fatal import end_process

        end_process(error)


if __name__ == "__main__":
    run()
