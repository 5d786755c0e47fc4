"""`meta.properties` in every log directory: which broker of which cluster the directory belongs to.

Kafka's own file, in its versions 0 and 1: a directory of Apache Kafka is accepted with its ids; one
of another broker or another cluster is refused before anything in it is touched.

In every log directory but the one with the broker's metadata a second file, of our own, names that
directory: without it the others could be taken for a data directory of Apache Kafka.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from millstream.controller import documents
from millstream.controller.documents import KnownDirectory, UnreadableDocument
from millstream.controller.errors import (
    DamagedMetadata,
    DirectoryOfCluster,
    DuplicateDirectoryId,
    InconsistentClusterId,
    MetadataMissing,
    WrongBrokerId,
)
from millstream.controller.store import make_directories_durably
from millstream.controller.topics import new_topic_id
from millstream.model.ids import BrokerId, TopicId
from millstream.runtime.disk import Disk, read_whole, write_atomically
from millstream.runtime.randomness import Randomness
from millstream.storage.directories.partition_metadata import format_topic_id, parse_topic_id

META_PROPERTIES: Final = "meta.properties"
METADATA_LOCATION: Final = "metadata.home"
"""In log directories without the metadata: which directory has it."""
CLUSTER_MEMBER: Final = "cluster.member"
"""In log directories of a broker in a cluster, whose metadata is in the coordination service."""
EPOCH_FILE: Final = "cluster.epoch"
"""Beside it: the broker's newest epoch that a controller has recorded."""
DIRECTORIES_FILE: Final = "cluster.directories"
"""Beside it, where there are several: all log directories that the broker has used."""

_RESERVED_DIRECTORY_IDS: Final = 100
"""Kafka reserves the first ones for "migrating", "unassigned" and "lost"."""
LOST_DIRECTORY: Final = UUID(int=2)
"""Stands for any directory that is offline."""
FULL_DIRECTORY: Final = UUID(int=98)
"""Stands for any directory that has no room. Ours; Kafka uses the first few of the reserved ids."""
USABLE_DIRECTORY: Final = UUID(int=99)
"""Stands for any directory that is neither offline nor full."""


class MetaProperties(NamedTuple):
    """What the file says; Kafka's version 0 may lack the ids."""

    broker_id: int | None
    cluster_id: str | None
    directory_id: UUID | None


NO_PROPERTIES: Final = MetaProperties(None, None, None)


def read_meta_properties(disk: Disk, directories: Sequence[str]) -> dict[str, MetaProperties]:
    """Read the file of every directory; NO_PROPERTIES where it is missing. Changes nothing.

    Raises DamagedMetadata. A directory that cannot be read at all is skipped here; the log manager
    takes it offline.
    """
    found = {}
    problems: dict[str, str] = {}
    for directory in directories:
        path = f"{directory}/{META_PROPERTIES}"
        try:
            found[directory] = decode_meta_properties(read_whole(disk, path))
        except FileNotFoundError:
            found[directory] = NO_PROPERTIES
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
    """Raise DuplicateDirectoryId for two paths to one directory, or for a copy of another."""
    paths: dict[UUID, str] = {}
    for directory, properties in found.items():
        if properties.directory_id is not None:
            other = paths.setdefault(properties.directory_id, directory)
            if other != directory:
                raise DuplicateDirectoryId(paths=(other, directory))


def check_standalone(disk: Disk, directories: Iterable[str]) -> None:
    """Raise DirectoryOfCluster for a directory of a broker in a cluster: it has no metadata."""
    for directory in directories:
        with suppress(OSError):
            if disk.exists(f"{directory}/{CLUSTER_MEMBER}"):
                raise DirectoryOfCluster(directory)


def agreed_cluster_id(found: Mapping[str, MetaProperties], known: str | None) -> str | None:
    """The cluster id that all directories share; `known`: from our own metadata or settings."""
    for directory, properties in found.items():
        theirs = properties.cluster_id
        if known is None:
            known = theirs
        elif theirs is not None and theirs != known:
            path = f"{directory}/{META_PROPERTIES}"
            raise InconsistentClusterId(path=path, ours=known, theirs=theirs)
    return known


def new_cluster_id(randomness: Randomness) -> str:
    """A random cluster id in Kafka's form."""
    return format_topic_id(new_topic_id(randomness))


def write_meta_properties(
    disk: Disk,
    found: Mapping[str, MetaProperties],
    *,
    broker_id: BrokerId,
    cluster_id: str,
    directory_ids: Mapping[str, UUID],
) -> None:
    """Write the files that are missing or incomplete."""
    for directory, properties in found.items():
        whole = MetaProperties(broker_id, cluster_id, directory_ids[directory])
        if whole != properties:
            make_directories_durably(disk, directory)
            path = f"{directory}/{META_PROPERTIES}"
            write_atomically(disk, path, encode_meta_properties(whole))


def directory_ids_of(
    found: Mapping[str, MetaProperties], randomness: Randomness
) -> dict[str, UUID]:
    """The ids of all directories, with new ones for those that have none."""
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


def read_metadata_locations(disk: Disk, directories: Iterable[str]) -> dict[str, str]:
    """The directories that name another one as the metadata's location, with its description."""
    located = {}
    for directory in directories:
        try:
            raw = read_whole(disk, f"{directory}/{METADATA_LOCATION}")
            location = documents.decode_directory(raw)
            located[directory] = (
                f"{location.path} with id {format_topic_id(TopicId(location.directory_id))}"
            )
        except FileNotFoundError:
            continue
        except UnreadableDocument as error:
            located[directory] = f"that is not known ({METADATA_LOCATION}: {error})"
        except OSError:
            continue
    return located


def check_metadata_present(located: Mapping[str, str]) -> None:
    """Raise MetadataMissing where there is no metadata and a directory says where it should be."""
    for location in located.values():
        raise MetadataMissing(marker=METADATA_LOCATION, directory=location)


def write_metadata_location(
    disk: Disk, directories: Iterable[str], location: KnownDirectory
) -> None:
    """Write the metadata's location into all directories but that one; raises OSError."""
    stored = documents.encode_directory(location)
    for directory in directories:
        path = f"{directory}/{METADATA_LOCATION}"
        if directory == location.path:
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
    """Raises ValueError with the reason for anything that Kafka would not write."""
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
