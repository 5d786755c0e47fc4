"""The `.kafka_cleanshutdown` file: says that every log in a directory was flushed and closed.

With it the loader skips recovery, and the broker epoch in it lets the broker keep its place in
ISRs when it registers again (KIP-966). It is removed before loading begins, so that a crash while
loading is unclean.

Besides Kafka's fields, which its readers find, it has the number of the broker's logs. The epoch
proves that nothing was lost; where a directory is missing or no longer used, the files in the other
directories do not say so, but their number is larger than that of the logs found.
"""

import json
from typing import Final, NamedTuple, TypeGuard

from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch
from millstream.model.invariant import invariant
from millstream.model.limits import KIB
from millstream.runtime.disk import Disk, write_atomically
from millstream.storage.directories.checkpoints import INT64_MAX

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

_VERSION: Final = 0
_CONTENT_BYTES_MAX: Final = 4 * KIB
"""More than this was not written by a broker; it is not parsed."""


class CleanShutdown(NamedTuple):
    """The content of the file, as the last run of the broker left it."""

    broker_epoch: BrokerEpoch | None
    """Its epoch; None when it had none or the content is not readable."""
    log_count: int | None = None
    """Logs that it had, in all its directories; None where the content does not say."""


def is_present(disk: Disk, directory: str) -> bool:
    """Whether the directory's logs were closed cleanly."""
    return disk.exists(_path(directory))


def write(
    disk: Disk, directory: str, broker_epoch: BrokerEpoch, *, log_count: int | None = None
) -> None:
    """Write the file, durably. Only after every log of the directory was flushed and closed."""
    is_epoch = NO_BROKER_EPOCH <= broker_epoch <= INT64_MAX
    invariant(is_epoch, "I-17 broker epoch out of range", broker_epoch=broker_epoch)
    content: dict[str, int] = {"version": _VERSION, "brokerEpoch": broker_epoch}
    if log_count is not None:
        content["logs"] = log_count
    text = json.dumps(content, separators=(",", ":"))
    write_atomically(disk, _path(directory), text.encode("ascii"))


def read(disk: Disk, directory: str) -> CleanShutdown | None:
    """The content of the file, None when there is none; the file stays."""
    try:
        file = disk.open_read(_path(directory))
    except FileNotFoundError:
        return None
    with file:
        return _parse(file.read_at(0, _CONTENT_BYTES_MAX + 1))


def read_and_remove(disk: Disk, directory: str) -> CleanShutdown | None:
    """The content of the file, None when there is none; then the file is removed, durably.

    A file that cannot be parsed still means a clean shutdown, as in Kafka: it is only created after
    the logs were closed. Its epoch is unknown then, which costs the broker its place in ISRs.
    """
    found = read(disk, directory)
    if found is not None:
        disk.remove(_path(directory))
        disk.sync_directory(directory)
    return found


def _parse(raw: bytes) -> CleanShutdown:
    nothing = CleanShutdown(None)
    if len(raw) > _CONTENT_BYTES_MAX:
        return nothing
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return nothing
    if not isinstance(content, dict):
        return nothing
    epoch, count = content.get("brokerEpoch"), content.get("logs")
    if not _is_number(epoch) or not (count is None or _is_number(count)):
        return nothing
    return CleanShutdown(BrokerEpoch(epoch), count)


def _is_number(value: object) -> TypeGuard[int]:
    # bool is a kind of int in Python, not in JSON.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT64_MAX


def _path(directory: str) -> str:
    return f"{directory}/{CLEAN_SHUTDOWN_FILE}"
