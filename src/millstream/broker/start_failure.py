"""Why a start failed, as a cause and a sentence; a broker passes it to `millstream up` in one line.

Loaded only when a start has failed.
"""

import errno
from enum import StrEnum
from typing import Final, NamedTuple

from millstream.model.config.errors import InvalidConfig
from millstream.model.errors import LogDirectoryLocked, StorageFailed

PREFIX: Final = "failed: "
_ERRNO_CAUSES: Final = {
    errno.EADDRINUSE: "port-taken",
    errno.EADDRNOTAVAIL: "address",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ENOTDIR: "directory",
    errno.EEXIST: "directory",
    errno.ENOENT: "directory",
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
}


class Cause(StrEnum):
    """The kind of a failure; the command that started the broker has a hint for each."""

    PORT_TAKEN = "port-taken"
    ADDRESS = "address"
    """Not an address of this machine."""
    PRIVILEGED_PORT = "privileged-port"
    IN_USE = "in-use"
    """Another process has the directory."""
    PERMISSION = "permission"
    DIRECTORY = "directory"
    """Something else is wrong with it."""
    DISK_FULL = "disk-full"
    SETTING = "setting"
    OTHER = "other"


class StartFailure(NamedTuple):
    """A cause and its sentence."""

    cause: Cause
    reason: str

    def line(self) -> str:
        """The line for the parent process."""
        return f"{PREFIX}{self.cause} {' '.join(self.reason.split())}\n"


def failure_of(error: Exception) -> StartFailure:
    """What a start raised."""
    return StartFailure(_cause_of(error), reason_of(error))


def parse(line: str) -> StartFailure | None:
    """What `line` wrote; None for any other line."""
    if not line.startswith(PREFIX):
        return None
    cause, _, reason = line.removeprefix(PREFIX).strip().partition(" ")
    known = cause in Cause.__members__.values()
    return StartFailure(Cause(cause) if known else Cause.OTHER, reason)


def reason_of(error: Exception) -> str:
    """The error's text, without the errno that Python puts before it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _cause_of(error: Exception) -> Cause:
    if isinstance(error, InvalidConfig):
        return Cause.SETTING
    if isinstance(error, LogDirectoryLocked):
        return Cause.IN_USE
    if isinstance(error, StorageFailed):
        return Cause.DIRECTORY
    if isinstance(error, OSError):
        cause = Cause(_ERRNO_CAUSES.get(error.errno or 0, "other"))
        # Opening a file names its path; an error without one came from binding a port.
        is_port = cause is Cause.PERMISSION and error.filename is None
        return Cause.PRIVILEGED_PORT if is_port else cause
    return Cause.OTHER
