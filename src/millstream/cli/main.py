"""Entry point of the `millstream` command."""


def run() -> None:
    """Placeholder until the first command lands."""
