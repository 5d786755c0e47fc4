"""`python -m millstream` is the `millstream` command."""

from millstream.cli.main import run

if __name__ == "__main__":
    run()
