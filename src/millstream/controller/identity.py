"""`meta.properties` in every log directory: which broker of which cluster the directory belongs to.

Kafka's own file, in its versions 0 and 1: a directory of Apache Kafka is accepted and its ids are
taken over, one of another broker or another cluster is refused, before anything in it is touched.

Beside it lies a file of ours that says which log directory has the broker's metadata, in all but
that one: without it the others would look like a data directory of Apache Kafka.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from millstream.controller import documents
from millstream.controller.documents import KnownDirectory, UnreadableDocument
from millstream.controller.errors import (
    DamagedMetadata,
    DuplicateDirectoryId,
    InconsistentClusterId,
    MetadataMissing,
    OfACluster,
    WrongBrokerId,
)
from millstream.controller.store import make_directories_durably
from millstream.controller.topics import new_topic_id
from millstream.model.ids import BrokerId, TopicId
from millstream.runtime.disk import Disk, read_whole, write_atomically
from millstream.runtime.randomness import Randomness
from millstream.storage.directories.partition_metadata import format_topic_id, parse_topic_id

META_PROPERTIES: Final = "meta.properties"
METADATA_HOME: Final = "metadata.home"
"""In log directories without the metadata: where that is."""
CLUSTER_MEMBER: Final = "cluster.member"
"""In log directories of a broker in a cluster, whose metadata is in no directory."""
EPOCH_FILE: Final = "cluster.epoch"
"""Beside it: the broker's newest epoch that a controller has written down."""
DIRECTORIES_FILE: Final = "cluster.directories"
"""Beside it, where there are several: all log directories that the broker has had."""

_RESERVED_DIRECTORY_IDS: Final = 100
"""Kafka keeps the first ones for "migrating", "unassigned" and "lost"."""
LOST_DIRECTORY: Final = UUID(int=2)
"""Stands for directories that are offline, whichever."""


class MetaProperties(NamedTuple):
    """What the file says; Kafka's version 0 may lack the ids."""

    broker_id: int | None
    cluster_id: str | None
    directory_id: UUID | None


NOTHING_SAID: Final = MetaProperties(None, None, None)


def read_meta_properties(disk: Disk, directories: Sequence[str]) -> dict[str, MetaProperties]:
    """What every directory says, nothing for one without the file. Changes nothing.

    Raises DamagedMetadata. A directory that cannot be read at all is left out here and to the log
    manager, which takes it offline.
    """
    found = {}
    problems: dict[str, str] = {}
    for directory in directories:
        path = f"{directory}/{META_PROPERTIES}"
        try:
            found[directory] = decode_meta_properties(read_whole(disk, path))
        except FileNotFoundError:
            found[directory] = NOTHING_SAID
        except OSError:
            continue
        except ValueError as error:
            problems[path] = str(error)
    if problems:
        raise DamagedMetadata(problems)
    return found


def check_broker_id(found: Mapping[str, MetaProperties], broker_id: BrokerId) -> None:
    """Raise WrongBrokerId for a directory of another broker."""
    for directory, properties in found.items():
        theirs = properties.broker_id
        if theirs is not None and theirs != broker_id:
            path = f"{directory}/{META_PROPERTIES}"
            raise WrongBrokerId(path=path, ours=broker_id, theirs=theirs)


def check_directory_ids(found: Mapping[str, MetaProperties]) -> None:
    """Raise DuplicateDirectoryId for two directories that are one, or one the copy of another."""
    paths: dict[UUID, str] = {}
    for directory, properties in found.items():
        if properties.directory_id is not None:
            other = paths.setdefault(properties.directory_id, directory)
            if other != directory:
                raise DuplicateDirectoryId(paths=(other, directory))


def check_alone(disk: Disk, directories: Iterable[str]) -> None:
    """Raise OfACluster for a directory of a broker in a cluster: its topics are not in it."""
    for directory in directories:
        with suppress(OSError):
            if disk.exists(f"{directory}/{CLUSTER_MEMBER}"):
                raise OfACluster(directory)


def agreed_cluster_id(found: Mapping[str, MetaProperties], known: str | None) -> str | None:
    """The one cluster id of all; `known` is what our own metadata or the configuration says."""
    for directory, properties in found.items():
        theirs = properties.cluster_id
        if known is None:
            known = theirs
        elif theirs is not None and theirs != known:
            path = f"{directory}/{META_PROPERTIES}"
            raise InconsistentClusterId(path=path, ours=known, theirs=theirs)
    return known


def new_cluster_id(randomness: Randomness) -> str:
    """In Kafka's form."""
    return format_topic_id(new_topic_id(randomness))


def write_meta_properties(
    disk: Disk,
    found: Mapping[str, MetaProperties],
    *,
    broker_id: BrokerId,
    cluster_id: str,
    directory_ids: Mapping[str, UUID],
) -> None:
    """Complete the files that are missing or lack something."""
    for directory, properties in found.items():
        whole = MetaProperties(broker_id, cluster_id, directory_ids[directory])
        if whole != properties:
            make_directories_durably(disk, directory)
            path = f"{directory}/{META_PROPERTIES}"
            write_atomically(disk, path, encode_meta_properties(whole))


def directory_ids_of(
    found: Mapping[str, MetaProperties], randomness: Randomness
) -> dict[str, UUID]:
    """The ids of all directories, new ones for those that have none."""
    return {
        directory: properties.directory_id or _new_directory_id(randomness)
        for directory, properties in found.items()
    }


def _new_directory_id(randomness: Randomness) -> UUID:
    while True:
        directory_id = new_topic_id(randomness)
        if directory_id.int >= _RESERVED_DIRECTORY_IDS:
            return directory_id


# -- where the metadata is ---------------------------------------------------------------------


def marked_directories(disk: Disk, directories: Iterable[str]) -> dict[str, str]:
    """Directories of a broker of ours without its metadata, and what they say of its place."""
    marked = {}
    for directory in directories:
        try:
            raw = read_whole(disk, f"{directory}/{METADATA_HOME}")
            home = documents.decode_directory(raw)
            marked[directory] = f"{home.path} with id {format_topic_id(TopicId(home.directory_id))}"
        except FileNotFoundError:
            continue
        except UnreadableDocument as error:
            marked[directory] = f"that nobody can tell ({METADATA_HOME}: {error})"
        except OSError:
            continue
    return marked


def check_metadata_home(marked: Mapping[str, str]) -> None:
    """Raise MetadataMissing where there is no metadata and a directory says that there is some."""
    for home in marked.values():
        raise MetadataMissing(mark=METADATA_HOME, home=home)


def mark_metadata_home(disk: Disk, directories: Iterable[str], home: KnownDirectory) -> None:
    """Let all directories but `home` say where the metadata is; raises OSError."""
    stored = documents.encode_directory(home)
    for directory in directories:
        path = f"{directory}/{METADATA_HOME}"
        if directory == home.path:
            with suppress(FileNotFoundError):
                disk.remove(path)
        elif not disk.exists(path) or read_whole(disk, path) != stored:
            write_atomically(disk, path, stored)


# -- the file's text ---------------------------------------------------------------------------


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """Kafka's version 1."""
    directory_id = properties.directory_id
    lines = [
        "#",
        "version=1",
        f"node.id={properties.broker_id}",
        f"cluster.id={properties.cluster_id}",
    ]
    if directory_id is not None:
        lines.append(f"directory.id={format_topic_id(TopicId(directory_id))}")
    return ("\n".join(lines) + "\n").encode("ascii")


def decode_meta_properties(raw: bytes) -> MetaProperties:
    """Raises ValueError with the reason for anything that Kafka did not write."""
    try:
        values = _properties(raw.decode("latin-1"))
        if "version" not in values and "broker.id" not in values:
            raise ValueError("neither version nor broker.id")
        version = int(values.get("version", "0"))
    except ValueError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    if version not in (0, 1):
        raise ValueError(f"unknown version {version}")
    id_key = "broker.id" if version == 0 else "node.id"
    broker_text, cluster_id = values.get(id_key), values.get("cluster.id")
    if version == 1 and (broker_text is None or not cluster_id):
        raise ValueError(f"{id_key} or cluster.id is missing")
    if broker_text is not None and not (broker_text.isascii() and broker_text.isdigit()):
        raise ValueError(f"{id_key} is {broker_text!r}")
    directory_id = None
    if "directory.id" in values:
        directory_id = parse_topic_id(values["directory.id"])
        if directory_id is None:
            raise ValueError(f"directory.id is {values['directory.id']!r}")
    broker_id = None if broker_text is None else int(broker_text)
    return MetaProperties(broker_id, cluster_id or None, directory_id)


def _properties(text: str) -> dict[str, str]:
    """Java's properties, as far as its own `store` writes them for ids."""
    values = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise ValueError(f"line {line!r} has no value")
        values[name.strip()] = value.strip().replace("\\", "")
    return values
