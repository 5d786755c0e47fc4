"""Checks that log directories belong to this broker and cluster before anything in them is changed.

The metadata is the cluster's, so a broker deletes logs that the cluster does not have. These must
never be Apache Kafka's logs, or those of a standalone broker whose metadata was not imported: a
marker file in every directory says that its logs came from a cluster, and a standalone broker does
not use such a directory either.
"""

import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from millstream.broker.cluster import member_directories
from millstream.controller import identity
from millstream.controller.errors import DirectoryNotOfThisCluster
from millstream.controller.identity import CLUSTER_MEMBER, EPOCH_FILE, MetaProperties
from millstream.controller.standalone.controller import METADATA_DIRECTORY
from millstream.controller.store import BROKER
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.runtime.disk import Disk, read_whole, write_atomically
from millstream.runtime.randomness import Randomness
from millstream.storage.directories.log_directory import MissingDirectory

_MARK: Final = b"the metadata of these logs is in the coordination service of their cluster\n"
_EPOCH: Final = re.compile(rb"([0-9]{1,18})\n?")


class ClusterIdentity:
    """Constructed, then `read`; `complete`d when the cluster's id is known."""

    def __init__(
        self, disk: Disk, directories: Sequence[str], *, broker_id: BrokerId, randomness: Randomness
    ) -> None:
        self._disk = disk
        self._directories = list(directories)
        self._broker_id = broker_id
        self._randomness = randomness
        self._found: dict[str, MetaProperties] = {}
        self.cluster_id: str | None = None
        """From the directories; None: they belong to no cluster yet."""
        self.new_cluster_id = ""
        """Used if the cluster has no id yet."""
        self._directory_ids: dict[str, UUID] = {}
        self._known: dict[UUID, str] = {}
        """Directories that this broker has had, without those that were given up."""
        self.withheld: list[MissingDirectory] = []
        """Missing directories whose logs may be missing too."""
        self.complete_since: BrokerEpoch | None = None
        """If directories are missing and no log seems to be: since which epoch."""
        self._is_marked = False
        self.was_standalone = False
        """Whether the directories have the metadata of a standalone broker, not imported yet."""
        self.seen_epoch = NO_BROKER_EPOCH
        """The broker's newest epoch known to have been in the coordination service."""

    def read(self) -> None:
        """Raises WrongBrokerId, InconsistentClusterId, DuplicateDirectoryId, DamagedMetadata."""
        self._found = identity.read_meta_properties(self._disk, self._directories)
        identity.check_broker_id(self._found, self._broker_id)
        identity.check_directory_ids(self._found)
        self.cluster_id = identity.agreed_cluster_id(self._found, None)
        self.new_cluster_id = identity.new_cluster_id(self._randomness)
        for directory in self._found:
            with suppress(OSError):
                if self._disk.exists(f"{directory}/{METADATA_DIRECTORY}/{BROKER}"):
                    self.was_standalone = True
                if self._disk.exists(f"{directory}/{CLUSTER_MEMBER}"):
                    self._is_marked = True
                self.seen_epoch = max(self.seen_epoch, self._read_epoch(directory))
        self._find_absent()
        # Metadata from before the import is ignored: the cluster has it, and newer.
        self.was_standalone = self.was_standalone and not self._is_marked

    def _find_absent(self) -> None:
        found, configured = self._found, self._directories
        self._known = member_directories.read_known(self._disk, found)
        gone = member_directories.absent(self._known, found, configured)
        if not gone:
            return
        self.complete_since = member_directories.complete_since(self._disk, found)
        if self.complete_since is None:
            self.withheld = member_directories.withheld(gone, found, configured)
            return
        for one in gone:  # no log is missing: it was removed on purpose
            del self._known[one]

    def _read_epoch(self, directory: str) -> BrokerEpoch:
        """Unreadable content is ignored: this file is a second check, not the first."""
        try:
            text = read_whole(self._disk, f"{directory}/{EPOCH_FILE}")
        except FileNotFoundError:
            return NO_BROKER_EPOCH
        match = _EPOCH.fullmatch(text)
        return BrokerEpoch(int(match[1])) if match is not None else NO_BROKER_EPOCH

    def check_logs(self, log_count: int) -> None:
        """Raise DirectoryNotOfThisCluster for logs that did not come from a cluster."""
        if log_count and not self._is_marked:
            first = self._directories[0]
            raise DirectoryNotOfThisCluster(
                first, f"{log_count} logs in it are not from this cluster"
            )

    def leave_out(self, directories: Container[str]) -> None:
        """Exclude log directories that turned out to be unusable: they are not marked."""
        self._found = {path: one for path, one in self._found.items() if path not in directories}
        ids = identity.directory_ids_of(self._found, self._randomness)
        self._directory_ids = {
            path: self._directory_ids.get(path, one) for path, one in ids.items()
        }

    @property
    def directory_id(self) -> UUID | None:
        """Identifies this broker's data to the cluster: the id of the first directory."""
        return next((self._directory_ids[one] for one in self._directory_ids), None)

    def complete(self, cluster_id: str) -> None:
        """Mark the directories as this broker's in this cluster; raises OSError."""
        identity.write_meta_properties(
            self._disk,
            self._found,
            broker_id=self._broker_id,
            cluster_id=cluster_id,
            directory_ids=self._directory_ids,
        )
        for directory in self._found:
            path = f"{directory}/{CLUSTER_MEMBER}"
            if not self._disk.exists(path):
                write_atomically(self._disk, path, _MARK)
        self._known |= {one: path for path, one in self._directory_ids.items()}
        member_directories.write_known(self._disk, self._found, self._known)
        self.cluster_id, self._is_marked = cluster_id, True

    def keep_epoch(self, epoch: BrokerEpoch) -> None:
        """Store an epoch that a controller has recorded: metadata with a lower one is older.

        Raises OSError.
        """
        for directory in self._found:
            write_atomically(self._disk, f"{directory}/{EPOCH_FILE}", b"%d\n" % epoch)
        self.seen_epoch = epoch
