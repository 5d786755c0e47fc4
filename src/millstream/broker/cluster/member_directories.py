"""The log directories that a member of a cluster has had, to detect missing ones.

As with a standalone broker (docs/adr/0013): a disk that is not mounted, or a mistyped `log.dirs`,
must not be taken for partitions that were never here. Created again in another directory they would
be empty, and if this broker was the last one in sync it would lead them empty. The metadata of a
member is not in its directories, so every directory has the list of all of them.

A clean stop stores the number of logs, which shows whether any are missing. After any other stop
that is unknown, and replicas that are in no other directory stay offline.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from millstream.controller import documents
from millstream.controller.documents import UnreadableDocument
from millstream.controller.identity import DIRECTORIES_FILE, MetaProperties
from millstream.model.ids import BrokerEpoch, TopicId
from millstream.runtime.disk import Disk, read_whole, write_atomically
from millstream.storage import names
from millstream.storage.directories import clean_shutdown
from millstream.storage.directories.clean_shutdown import CleanShutdown
from millstream.storage.directories.log_directory import MissingDirectory
from millstream.storage.directories.partition_metadata import format_topic_id, parse_topic_id

_KIND: Final = "log-directories"

Known = Mapping[UUID, str]
"""The path where each directory was last seen."""


def read_known(disk: Disk, directories: Iterable[str]) -> dict[UUID, str]:
    """The union of the lists in all readable directories."""
    known: dict[UUID, str] = {}
    for directory in directories:
        # Unreadable lists are ignored; the other directories have the same.
        with suppress(OSError, UnreadableDocument, AttributeError):
            raw = read_whole(disk, f"{directory}/{DIRECTORIES_FILE}")
            for line in documents.decode(_KIND, raw):
                directory_id = parse_topic_id(str(line.get("directory_id")))
                if directory_id is not None:
                    known.setdefault(directory_id, str(line.get("path")))
    return known


def write_known(disk: Disk, directories: Iterable[str], known: Known) -> None:
    """Write the list to each directory that lacks it; raises OSError. One alone needs no list."""
    lines: list[dict[str, Any]] = [
        {"directory_id": format_topic_id(TopicId(one)), "path": path}
        for one, path in sorted(known.items())
    ]
    raw = documents.encode(_KIND, lines)
    for directory in directories:
        path = f"{directory}/{DIRECTORIES_FILE}"
        is_there = disk.exists(path)
        if (is_there and read_whole(disk, path) != raw) or (not is_there and len(known) > 1):
            write_atomically(disk, path, raw)


def absent(
    known: Known, found: Mapping[str, MetaProperties], configured: Sequence[str]
) -> dict[UUID, str]:
    """Known directories that were not found."""
    present = {properties.directory_id for properties in found.values()}
    # A path that cannot be read may be any of them: the log manager takes it offline.
    unreadable = set(configured).difference(found)
    return {
        one: path for one, path in known.items() if one not in present and path not in unreadable
    }


def complete_since(disk: Disk, directories: Iterable[str]) -> BrokerEpoch | None:
    """The epoch whose clean stop left no logs but those in these directories; None if unknown.

    Whether the broker has run without them since then, only its cluster knows.
    """
    proofs: set[CleanShutdown] = set()
    logs = 0
    for directory in directories:
        try:
            found = disk.list_directory(directory)
            marker = clean_shutdown.read(disk, directory)
        except FileNotFoundError:
            continue  # a new one, not created yet
        except OSError:
            return None
        if marker is not None:
            proofs.add(marker)
        elif found:
            return None
        logs += sum(names.parse_partition_directory(one) is not None for one in found)
    if {one.log_count for one in proofs} != {logs}:
        return None
    return max((one.broker_epoch for one in proofs if one.broker_epoch is not None), default=None)


def withheld(
    gone: Known, found: Mapping[str, MetaProperties], configured: Sequence[str]
) -> list[MissingDirectory]:
    """The missing directories, to be kept offline and reported."""
    made = []
    for one, path in gone.items():
        text = format_topic_id(TopicId(one))
        there = found.get(path)
        is_taken = there is not None and there.directory_id is not None
        made.append(
            MissingDirectory(
                f"{path} ({text})" if is_taken else path,
                path,
                _reason(text, path, is_taken=is_taken, is_configured=path in configured),
            )
        )
    return made


def _reason(text: str, path: str, *, is_taken: bool, is_configured: bool) -> str:
    if not is_configured:
        what = "it is not in log.dirs any more"
    elif is_taken:
        what = "another directory is mounted there"
    else:
        what = "it is not mounted there, or its meta.properties is gone"
    return (
        f"the log directory with id {text}, last seen at {path}, is missing: {what}. Replicas that"
        " are in no other directory stay offline. Bring it back and restart; or, to give up what"
        f" it held, stop the broker, remove {DIRECTORIES_FILE} from its other log directories and"
        " start again"
    )
