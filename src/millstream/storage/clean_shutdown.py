"""The `.kafka_cleanshutdown` file: proof that every log in a directory was flushed and closed.

With it the loader skips recovery, and the broker epoch in it lets the broker keep its place in
ISRs when it registers again (KIP-966). It is removed before loading begins, so that a crash while
loading counts as unclean.
"""

import json
from typing import Final, NamedTuple

from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch
from millstream.model.invariant import invariant
from millstream.model.limits import KIB
from millstream.runtime.disk import Disk, write_atomically
from millstream.storage.checkpoints import INT64_MAX

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

_VERSION: Final = 0
_CONTENT_BYTES_MAX: Final = 4 * KIB
"""More than this was not written by a broker; it is not parsed."""


class CleanShutdown(NamedTuple):
    """What the last incarnation left behind."""

    broker_epoch: BrokerEpoch | None
    """Its epoch; None when it had none or the content is not readable."""


def is_present(disk: Disk, directory: str) -> bool:
    """Whether the directory's logs were closed cleanly."""
    return disk.exists(_path(directory))


def write(disk: Disk, directory: str, broker_epoch: BrokerEpoch) -> None:
    """Leave the proof, durably. Only after every log of the directory was flushed and closed."""
    is_epoch = NO_BROKER_EPOCH <= broker_epoch <= INT64_MAX
    invariant(is_epoch, "I-17 broker epoch out of range", broker_epoch=broker_epoch)
    content = {"version": _VERSION, "brokerEpoch": broker_epoch}
    text = json.dumps(content, separators=(",", ":"))
    write_atomically(disk, _path(directory), text.encode("ascii"))


def read_and_remove(disk: Disk, directory: str) -> CleanShutdown | None:
    """Take the proof, None when there is none; when this returns it is durably gone.

    A file that cannot be understood still counts as clean, as in Kafka: it is only created after
    the logs were closed. Its epoch is unknown then, which costs the broker its place in ISRs.
    """
    path = _path(directory)
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return None
    with file:
        raw = file.read_at(0, _CONTENT_BYTES_MAX + 1)
    disk.remove(path)
    disk.sync_directory(directory)
    return CleanShutdown(_parse_broker_epoch(raw))


def _parse_broker_epoch(raw: bytes) -> BrokerEpoch | None:
    if len(raw) > _CONTENT_BYTES_MAX:
        return None
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    # bool is a kind of int in Python, not in JSON.
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= INT64_MAX:
        return None
    return BrokerEpoch(epoch)


def _path(directory: str) -> str:
    return f"{directory}/{CLEAN_SHUTDOWN_FILE}"
