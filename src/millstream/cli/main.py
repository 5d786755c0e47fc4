"""Entry point of the `millstream` command."""

import sys

from millstream.cli import direct
from millstream.cli.failure import EXIT_INTERRUPTED, EXIT_USAGE, complain
from millstream.model.invariant import InvariantViolated


def run() -> None:
    """Run the command line of this process."""
    try:
        command = direct.command_of(sys.argv[1:])
        if command is not None:
            sys.exit(command())
        # Local import: Typer takes longer to load than a broker's own modules.
        from millstream.cli.app import app

        app()
    except ImportError as error:
        from millstream.kernels._select import CHOICE_VARIABLE

        # A wrong choice of kernels is the user's to correct, any other ImportError is a bug.
        if CHOICE_VARIABLE not in str(error):
            raise
        complain(str(error))
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except InvariantViolated as error:
        # Imported only now: it needs asyncio, which takes longer to load than all the rest.
        from millstream.runtime.fatal import end_process

        end_process(error)


if __name__ == "__main__":
    run()
