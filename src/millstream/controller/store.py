"""The controller's files in one directory; a crash leaves the state before or after a change.

    broker                          which broker of which cluster, and how often it was started
    producer-ids                    the first producer id that was never handed out
    broker-default.configs          dynamic settings of all brokers
    broker-1.configs                and of one
    Ik4jaP...Q.directory            a log directory that partitions may be in, and where it was
    orders.u9Xb...Q.topic           a topic that exists, with its configuration and partitions
    orders.u9Xb...Q.deleted         a topic that was deleted and whose logs may still be somewhere

Deleting a topic renames the second last to the last: in one step the topic is gone and recorded as
deleted, so that logs which a crash left behind are recognized and not adopted as data.
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from millstream.controller import documents
from millstream.controller.documents import (
    BrokerConfigs,
    BrokerState,
    KnownDirectory,
    UnreadableDocument,
)
from millstream.controller.errors import DamagedMetadata
from millstream.controller.image import GROUP_CONFIGS, TopicImage
from millstream.model.errors import (
    DiskFull,
    LogDirectoryClosed,
    LogDirectoryLocked,
    StorageFailed,
    TooManyOpenFiles,
)
from millstream.model.ids import TopicId
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.runtime.disk import DirectoryLock, Disk, is_disk_full, read_whole
from millstream.storage.directories.partition_metadata import format_topic_id

T = TypeVar("T")

TOPIC: Final = ".topic"
DELETED: Final = ".deleted"
CONFIGS: Final = ".configs"
DIRECTORY: Final = ".directory"
TEMPORARY: Final = ".tmp"
BROKER: Final = "broker"
PRODUCER_IDS: Final = "producer-ids"

_NAME_LENGTH_MAX: Final = 200
"""Of a topic's name in its file's name: with the id and two suffixes it fits 255 bytes."""


@dataclass(slots=True)
class Stored:
    """The content of all files."""

    state: BrokerState | None = None
    """None before the very first start."""
    next_producer_id: int = 0
    topics: list[TopicImage] = field(default_factory=list)
    deleted: list[TopicImage] = field(default_factory=list)
    broker_configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    directories: list[KnownDirectory] = field(default_factory=list)


Content = bytes | Callable[[], bytes]
"""The content of a file, or a function that makes it on the writing thread."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What one decision changes on disk. Each file is changed atomically by itself."""

    write: Mapping[str, Content] = field(default_factory=dict)
    rename: Sequence[tuple[str, str]] = ()
    remove: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.write or self.rename or self.remove)


NO_CHANGES: Final = FileChanges()


def topic_file(topic: TopicImage, suffix: str = TOPIC) -> str:
    """The name of a topic's file. A topic that is created again has another."""
    return f"{topic.name[:_NAME_LENGTH_MAX]}.{format_topic_id(topic.topic_id)}{suffix}"


def broker_configs_file(name: str) -> str:
    """The file of a broker's dynamic settings, "" standing for all brokers; or of a group's."""
    if name.startswith(GROUP_CONFIGS):
        from hashlib import sha256  # a group's id may be anything, and longer than a file's name

        return f"group-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}{CONFIGS}"
    return f"broker-{name or 'default'}{CONFIGS}"


def directory_file(directory: KnownDirectory) -> str:
    """The file that records a log directory; without it nothing is expected in that directory."""
    return f"{format_topic_id(TopicId(directory.directory_id))}{DIRECTORY}"


class MetadataStore:
    """Blocking; one caller at a time. After an ambiguous failure it refuses changes until a
    restart.
    """

    def __init__(
        self, disk: Disk, directory: str, *, on_full: Callable[[str], None] | None = None
    ) -> None:
        """`on_full` is called with the directory when there was no space for a change."""
        self._disk = disk
        self.directory = directory
        self._on_full = on_full
        self.failure: str | None = None
        self._lock: DirectoryLock | None = None

    def open(self) -> None:
        """Create and lock the directory; remove what interrupted writes left."""
        try:
            make_directories_durably(self._disk, self.directory)
            self._lock = self._disk.lock_directory(self.directory)
            for name in self._disk.list_directory(self.directory):
                if name.endswith(TEMPORARY):
                    self._disk.remove(self._path(name))
        except BlockingIOError as error:
            raise LogDirectoryLocked(f"{self.directory} is in use by another process") from error
        except OSError as error:
            raise self.failed(error) from error

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- reading ---------------------------------------------------------------------------

    def path_of(self, name: str) -> str:
        """Where the file of this name is, for messages."""
        return self._path(name)

    def read_state(self) -> BrokerState | None:
        """What `broker` says; None before the first start. Raises DamagedMetadata."""
        problems: dict[str, str] = {}
        names = self._names()
        if BROKER in names:
            state = self._read(BROKER, documents.decode_state, problems)
        else:
            state = None
            if any(name.endswith((TOPIC, DELETED)) for name in names) or PRODUCER_IDS in names:
                problems[self._path(BROKER)] = "missing, although there is other metadata"
        if problems:
            raise DamagedMetadata(problems)
        return state

    def load(self, *, starts: int) -> Stored:
        """All files, epochs as they are at start number `starts`; raises DamagedMetadata.

        All damaged files are reported at once, and nothing is touched.
        """
        stored = Stored()
        problems: dict[str, str] = {}
        for name in self._names():
            if name == PRODUCER_IDS:
                number = self._read(name, documents.decode_producer_ids, problems)
                stored.next_producer_id = number or 0
            elif name.endswith(CONFIGS):
                broker = self._read(name, documents.decode_broker_configs, problems)
                self._take_configs(name, broker, stored, problems)
            elif name.endswith(DIRECTORY):
                directory = self._read(name, documents.decode_directory, problems)
                self._take_directory(name, directory, stored, problems)
            elif name.endswith((TOPIC, DELETED)):
                topic = self._read(
                    name, lambda raw: documents.decode_topic(raw, starts=starts), problems
                )
                self._take_topic(name, topic, stored, problems)
        _find_doubles(stored, self._path, problems)
        if problems:
            raise DamagedMetadata(problems)
        return stored

    def _take_configs(
        self, name: str, broker: BrokerConfigs | None, stored: Stored, problems: dict[str, str]
    ) -> None:
        if broker is None:
            return
        if broker_configs_file(broker.name) != name:
            problems[self._path(name)] = f"it has the settings of broker {broker.name!r}"
        elif broker.configs:
            stored.broker_configs[broker.name] = broker.configs

    def _take_directory(
        self, name: str, known: KnownDirectory | None, stored: Stored, problems: dict[str, str]
    ) -> None:
        if known is None:
            return
        if directory_file(known) != name:
            problems[self._path(name)] = f"it describes {directory_file(known)}"
        else:
            stored.directories.append(known)

    def _take_topic(
        self, name: str, topic: TopicImage | None, stored: Stored, problems: dict[str, str]
    ) -> None:
        if topic is None:
            return
        is_deleted = name.endswith(DELETED)
        if topic_file(topic, DELETED if is_deleted else TOPIC) != name:
            problems[self._path(name)] = f"it describes topic {topic.name!r} of another name or id"
        else:
            (stored.deleted if is_deleted else stored.topics).append(topic)

    def _read(self, name: str, decode: Callable[[bytes], T], problems: dict[str, str]) -> T | None:
        try:
            return decode(read_whole(self._disk, self._path(name)))
        except UnreadableDocument as error:
            problems[self._path(name)] = str(error)
            return None
        except OSError as error:
            raise self.failed(error) from error

    def _names(self) -> list[str]:
        try:
            return self._disk.list_directory(self.directory)
        except OSError as error:
            raise self.failed(error) from error

    # -- changing --------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise StorageFailed after a failure, LogDirectoryClosed without the lock."""
        if self.failure is not None:
            raise StorageFailed(self.directory, self.failure)
        if self._lock is None:
            raise LogDirectoryClosed(self.directory)

    def apply(self, changes: FileChanges) -> None:
        """Make the changes durable.

        Raises DiskFull or TooManyOpenFiles when nothing was changed, StorageFailed when the state
        of the disk is in doubt.
        """
        self.check_usable()
        try:
            self._stage(changes.write)
        except OSError as error:
            self._unstage(changes.write)
            raise self._refused(error) from error
        try:
            for name in changes.write:
                self._disk.rename(self._path(name + TEMPORARY), self._path(name))
            for source, target in changes.rename:
                self._disk.rename(self._path(source), self._path(target))
            for name in changes.remove:
                self._disk.remove(self._path(name))
            self._disk.sync_directory(self.directory)
        except OSError as error:
            # Some files may be new and some old, and none is known to be durable: what the next
            # start will find is not known, so nothing more may be built on it.
            raise self.failed(error) from error

    def _stage(self, contents: Mapping[str, Content]) -> None:
        """Write the new files beside the old ones, in groups: each holds a file descriptor."""
        names = list(contents)
        for first in range(0, len(names), LOGS_PER_SYNC_MAX):
            with ExitStack() as opened:
                files = []
                for name in names[first : first + LOGS_PER_SYNC_MAX]:
                    path = self._path(name + TEMPORARY)
                    file = opened.enter_context(self._disk.open_write(path))
                    file.truncate(0)
                    content = contents[name]
                    file.write_at(0, content if isinstance(content, bytes) else content())
                    files.append(file)
                self._disk.sync_many(files, [])

    def _unstage(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                self._disk.remove(self._path(name + TEMPORARY))

    def _refused(self, error: OSError) -> DiskFull | TooManyOpenFiles | StorageFailed:
        if is_disk_full(error):
            if self._on_full is not None:
                self._on_full(self.directory)
            return DiskFull(self.directory)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return TooManyOpenFiles(f"{error.strerror} ({error.filename or self.directory})")
        return self.failed(error)

    def failed(self, error: OSError) -> StorageFailed:
        """Record the failure and return the error to raise; the first cause is kept."""
        if self.failure is None:
            self.failure = f"{error.strerror or error} ({error.filename or self.directory})"
        return StorageFailed(self.directory, self.failure)

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def _find_doubles(stored: Stored, path_of: Callable[[str], str], problems: dict[str, str]) -> None:
    """Report two topics with the same name or id: no sequence of our changes leads there."""
    names: dict[str, TopicImage] = {}
    for topic in stored.topics:
        other = names.setdefault(topic.name, topic)
        if other is not topic:
            problems[path_of(topic_file(topic))] = f"{topic_file(other)} has the same topic"
    alive = {topic.topic_id for topic in stored.topics}
    for topic in stored.deleted:
        if topic.topic_id in alive:
            problems[path_of(topic_file(topic, DELETED))] = "the topic exists too"


def make_directories_durably(disk: Disk, path: str) -> None:
    """Create the directory and its parents, each new name synced."""
    missing = []
    parent = path.rstrip("/")
    while parent and not disk.is_directory(parent):
        missing.append(parent)
        parent = parent.rpartition("/")[0]
    disk.make_directories(path)
    for made in reversed(missing):
        disk.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))
