"""How `millstream up` tells why it could not start: the cause, then what can be done about it."""

from typing import Final

from millstream.broker.start_failure import Cause, StartFailure, failure_of, reason_of
from millstream.cli.brokers_on_disk import BrokerRunning
from millstream.cli.supervisor import StartFailed
from millstream.coordination.keeper.journal import KeeperDataLocked

_HINTS: Final = {
    Cause.PORT_TAKEN: "another program has the port; `--port N` moves the brokers (0 takes free"
    " ports), `--config metrics.port=N` the metrics",
    Cause.ADDRESS: "--host takes an address of this machine; 0.0.0.0 is all of them",
    Cause.PRIVILEGED_PORT: "ports below 1024 need privileges; choose another with --port",
    Cause.IN_USE: "stop what uses it, or choose another --data-dir",
    Cause.PERMISSION: "check the owner and the permissions, or choose another --data-dir",
    Cause.DIRECTORY: "check the path and its permissions, or choose another --data-dir",
    Cause.DISK_FULL: "make room on the disk, or choose another --data-dir",
    Cause.SETTING: "correct it and start again; docs/configuration.md lists what each may be",
}


def explanation(error: Exception, *, prefix: str = "") -> list[str]:
    """The cause and, where there is one, a hint; each is a line."""
    failure = _failure(error)
    told = str(error) if isinstance(error, StartFailed) else failure.reason
    hint = _HINTS.get(failure.cause)
    return [prefix + told] if hint is None else [prefix + told, f"hint: {hint}"]


def _failure(error: Exception) -> StartFailure:
    if isinstance(error, StartFailed):
        # Without one the broker ended by a fault, and has left its trace above.
        return error.failure or StartFailure(Cause.OTHER, "")
    if isinstance(error, BrokerRunning | KeeperDataLocked):
        return StartFailure(Cause.IN_USE, reason_of(error))
    return failure_of(error)
