"""Whether a broker that finds nothing may begin anew.

Kafka wants every directory formatted by hand before the first start, and so never mistakes an
empty mount point for a new broker. Ours begins by itself; in return it looks whether the machine
says that a disk belongs there.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.controller.identity import META_PROPERTIES
from millstream.model.errors import OperatingError
from millstream.runtime.disk import Disk

_FSTAB: Final = "/etc/fstab"


class NotMounted(OperatingError):
    """A first start in a place where a disk should be."""

    def __init__(self, *, directory: str, point: str) -> None:
        self.directory, self.point = directory, point
        super().__init__(
            f"log directory {directory} is empty, and nothing is mounted on {point}, which"
            f" {_FSTAB} says is the place of a disk. Mount it; or, to begin anew on the disk below,"
            f" take {point} out of {_FSTAB}"
        )


def check_first_start(
    disk: Disk, directories: Sequence[str], unmounted_point: Callable[[str], str | None]
) -> None:
    """Raise NotMounted for a first start on a mount point without its disk.

    A broker that has something in any of its directories knows by itself which of them is missing.
    """
    for directory in directories:
        try:
            if disk.exists(f"{directory}/{META_PROPERTIES}"):
                return
        except OSError:
            return  # whoever opens it tells why it cannot be used
    for directory in directories:
        point = unmounted_point(directory)
        if point is not None:
            raise NotMounted(directory=directory, point=point)
