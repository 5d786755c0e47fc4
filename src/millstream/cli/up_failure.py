"""Explains why `millstream up` could not start: the cause, then a hint what to do about it."""

from typing import Final

from millstream.broker.start_failure import Cause, StartFailure, failure_of, reason_of
from millstream.cli.brokers_on_disk import BrokerRunning
from millstream.cli.supervisor import StartFailed
from millstream.coordination.keeper.journal import KeeperDataLocked

_HINTS: Final = {
    Cause.PORT_TAKEN: "another program uses the port; choose another with `--port N` (0 picks free"
    " ports), or for metrics with `--config metrics.port=N`",
    Cause.ADDRESS: "--host must be an address of this machine; 0.0.0.0 means all of them",
    Cause.PRIVILEGED_PORT: "ports below 1024 need privileges; choose another with --port",
    Cause.IN_USE: "stop the process that uses it, or choose another --data-dir",
    Cause.PERMISSION: "check the owner and the permissions, or choose another --data-dir",
    Cause.DIRECTORY: "check the path and its permissions, or choose another --data-dir",
    Cause.DISK_FULL: "free space on the disk, or choose another --data-dir",
    Cause.SETTING: "correct it and start again; docs/configuration.md lists valid values",
}


def explanation(error: Exception, *, prefix: str = "") -> list[str]:
    """The cause and, if there is one, a hint, one line each."""
    failure = _failure(error)
    cause = str(error) if isinstance(error, StartFailed) else failure.reason
    hint = _HINTS.get(failure.cause)
    return [prefix + cause] if hint is None else [prefix + cause, f"hint: {hint}"]


def _failure(error: Exception) -> StartFailure:
    if isinstance(error, StartFailed):
        # Without one the broker crashed, and its traceback is above.
        return error.failure or StartFailure(Cause.OTHER, "")
    if isinstance(error, BrokerRunning | KeeperDataLocked):
        return StartFailure(Cause.IN_USE, reason_of(error))
    return failure_of(error)
