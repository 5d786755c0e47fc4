"""What the user should know and that stops nothing: Python warnings on the driver."""

from collections.abc import Iterable
from warnings import warn

from millstream.pipelines.options import ReadOptions


class MillstreamWarning(UserWarning):
    """Something is surely not as it was meant."""


def tell(options: ReadOptions) -> None:
    """Of the options of a query."""
    tell_all(options.warnings)


def tell_all(texts: Iterable[str]) -> None:
    """Python shows each text once in a process."""
    for text in texts:
        warn(text, MillstreamWarning, stacklevel=3)
