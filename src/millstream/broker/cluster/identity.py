"""Whose log directories these are, for a broker of a cluster: nothing in them is touched before.

The metadata is the cluster's, so a broker deletes logs that the cluster knows nothing of. That must
never be Apache Kafka's logs, or those of a standalone broker that has not brought its metadata
along: a mark in every directory says that its logs came from a cluster, and a standalone broker
does not take such a directory either.
"""

import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from millstream.broker.cluster import member_directories
from millstream.controller import identity
from millstream.controller.errors import NotOfThisCluster
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
    """Made, `read`; `complete`d when the cluster's id is known."""

    def __init__(
        self, disk: Disk, directories: Sequence[str], *, broker_id: BrokerId, randomness: Randomness
    ) -> None:
        self._disk = disk
        self._directories = list(directories)
        self._broker_id = broker_id
        self._randomness = randomness
        self._found: dict[str, MetaProperties] = {}
        self.cluster_id: str | None = None
        """What the directories say; None: they belong to no cluster yet."""
        self.new_cluster_id = ""
        """For a cluster that has none."""
        self._directory_ids: dict[str, UUID] = {}
        self._known: dict[UUID, str] = {}
        """Directories that this broker has had, without those that are not needed any more."""
        self.withheld: list[MissingDirectory] = []
        """Directories that are not there, and whose logs may be missing."""
        self.complete_since: BrokerEpoch | None = None
        """Where directories are not there and nothing seems to be missing: since which epoch."""
        self._is_marked = False
        self.was_standalone = False
        """Whether there is the metadata of a standalone broker, which is no member yet."""
        self.seen_epoch = NO_BROKER_EPOCH
        """The broker's newest epoch that the coordination service is known to have had."""

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
        self._look_for_absent()
        # What a member had when it was standalone is of no concern: the cluster has it, and newer.
        self.was_standalone = self.was_standalone and not self._is_marked

    def _look_for_absent(self) -> None:
        found, configured = self._found, self._directories
        self._known = member_directories.read_known(self._disk, found)
        gone = member_directories.absent(self._known, found, configured)
        if not gone:
            return
        self.complete_since = member_directories.complete_since(self._disk, found)
        if self.complete_since is None:
            self.withheld = member_directories.withheld(gone, found, configured)
            return
        for one in gone:  # nothing is missing: it was taken away on purpose
            del self._known[one]

    def _read_epoch(self, directory: str) -> BrokerEpoch:
        """What cannot be understood says nothing: it is a second look, not the first."""
        try:
            text = read_whole(self._disk, f"{directory}/{EPOCH_FILE}")
        except FileNotFoundError:
            return NO_BROKER_EPOCH
        match = _EPOCH.fullmatch(text)
        return BrokerEpoch(int(match[1])) if match is not None else NO_BROKER_EPOCH

    def check_logs(self, log_count: int) -> None:
        """Raise NotOfThisCluster for logs that did not come from a cluster."""
        if log_count and not self._is_marked:
            first = self._directories[0]
            raise NotOfThisCluster(first, f"{log_count} logs in it came from elsewhere")

    def leave_out(self, directories: Container[str]) -> None:
        """Log directories that turned out to be unusable are not ours to mark."""
        self._found = {path: one for path, one in self._found.items() if path not in directories}
        ids = identity.directory_ids_of(self._found, self._randomness)
        self._directory_ids = {
            path: self._directory_ids.get(path, one) for path, one in ids.items()
        }

    @property
    def directory_id(self) -> UUID | None:
        """By which the cluster knows this broker's data: the first directory's."""
        return next((self._directory_ids[one] for one in self._directory_ids), None)

    def complete(self, cluster_id: str) -> None:
        """Take the directories as this broker's in this cluster; raises OSError."""
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
        """A controller has written it down: whoever knows less later is older; raises OSError."""
        for directory in self._found:
            write_atomically(self._disk, f"{directory}/{EPOCH_FILE}", b"%d\n" % epoch)
        self.seen_epoch = epoch
