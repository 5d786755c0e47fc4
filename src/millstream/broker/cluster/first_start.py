"""Whether a broker with empty log directories may start as a new one.

Kafka requires every directory to be formatted by hand before the first start, and so never mistakes
an empty mount point for a new broker. Ours starts without that; in return it checks whether the
machine's configuration has a disk to be mounted there.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.controller.identity import META_PROPERTIES
from millstream.model.errors import OperatingError
from millstream.runtime.disk import Disk

_FSTAB: Final = "/etc/fstab"


class NotMounted(OperatingError):
    """A first start on a mount point without its disk."""

    def __init__(self, *, directory: str, point: str) -> None:
        self.directory, self.point = directory, point
        super().__init__(
            f"log directory {directory} is empty, and nothing is mounted on {point}, which is a"
            f" mount point in {_FSTAB}. Mount it; or, to start a new broker without it, remove"
            f" {point} from {_FSTAB}"
        )


def check_first_start(
    disk: Disk, directories: Sequence[str], unmounted_point: Callable[[str], str | None]
) -> None:
    """Raise NotMounted for a first start on a mount point without its disk.

    A broker with data in any of its directories detects by itself which of them are missing.
    """
    for directory in directories:
        try:
            if disk.exists(f"{directory}/{META_PROPERTIES}"):
                return
        except OSError:
            return  # opening it will report why it cannot be used
    for directory in directories:
        point = unmounted_point(directory)
        if point is not None:
            raise NotMounted(directory=directory, point=point)
