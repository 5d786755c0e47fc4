"""Why a change of topics is refused, and why a broker does not start on damaged metadata."""

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId


class InvalidTopicName(OperatingError):
    """A name that Kafka forbids, or that metrics could not distinguish from an existing one."""


class TopicExists(OperatingError):
    """A topic of this name exists."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"topic {name!r} already exists")


class UnknownTopic(OperatingError):
    """There is no topic of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"topic {name!r} does not exist")


class InvalidPartitionCount(OperatingError):
    """A partition count below one, above the limit, or not an increase where one is required."""


class InvalidReplicationFactor(OperatingError):
    """Fewer than one replica, or more replicas than brokers."""


class InvalidReplicaAssignment(OperatingError):
    """A manual assignment that names no brokers, unknown ones, one twice, or leaves gaps."""


class InvalidRequest(OperatingError):
    """Parts of the request contradict each other."""


class NullConfigValue(OperatingError):
    """A topic's setting was given without a value."""


class TooManyPartitions(OperatingError):
    """One request would create more partitions than any request may."""

    def __init__(self, *, requested: int, limit: int) -> None:
        self.requested, self.limit = requested, limit
        super().__init__(f"{requested} partitions in one request, the limit is {limit}")


class TopicDeletionDisabled(OperatingError):
    """`delete.topic.enable` is false."""

    def __init__(self) -> None:
        super().__init__("topic deletion is disabled by delete.topic.enable")


class DamagedMetadata(OperatingError):
    """Files of the controller that are corrupt; nothing was changed or dropped."""

    def __init__(self, problems: dict[str, str]) -> None:
        self.problems = problems
        listed = "; ".join(f"{path}: {reason}" for path, reason in sorted(problems.items()))
        super().__init__(
            f"damaged metadata: {listed}. Restore the files from a backup; a topic's file may also"
            " be moved away: its logs are then adopted again, without its configuration"
        )


class MetadataMissing(OperatingError):
    """Log directories of this broker without the one that has the metadata."""

    def __init__(self, *, marker: str, directory: str) -> None:
        self.marker, self.directory = marker, directory
        super().__init__(
            f"the metadata of this broker is in the log directory {directory}, which is not in"
            " log.dirs, not mounted, or was emptied. Without it topics and their settings would be"
            " incomplete. Bring it back; or, to start over with the logs that are here,"
            f" remove {marker} from every log directory"
        )


class DuplicateDirectoryId(OperatingError):
    """Two log directories with the same id: one is a copy, or a second path to the other."""

    def __init__(self, *, paths: tuple[str, str]) -> None:
        self.paths = paths
        super().__init__(
            f"{paths[0]} and {paths[1]} have the same directory.id: one is a copy of the other, or"
            " they are one directory. Take one of them out of log.dirs"
        )


class WrongBrokerId(OperatingError):
    """A log directory that belongs to another broker."""

    def __init__(self, *, path: str, ours: BrokerId, theirs: int) -> None:
        self.path, self.ours, self.theirs = path, ours, theirs
        super().__init__(
            f"{path} belongs to broker {theirs}, this one is {ours}: check node.id and log.dirs"
        )


class InconsistentClusterId(OperatingError):
    """Log directories of different clusters."""

    def __init__(self, *, path: str, ours: str, theirs: str) -> None:
        self.path, self.ours, self.theirs = path, ours, theirs
        super().__init__(f"{path} belongs to cluster {theirs}, the others to {ours}")


class DirectoryNotOfThisCluster(OperatingError):
    """A log directory whose logs the cluster does not know and would therefore delete."""

    def __init__(self, directory: str, reason: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} cannot be used in this cluster: {reason}. To keep using these logs,"
            " remove zookeeper.connect and run the broker standalone. To join a cluster, start with"
            " empty log directories; only a new cluster can be bootstrapped from a standalone"
            " broker's directories"
        )


class DirectoryOfCluster(OperatingError):
    """A log directory of a broker in a cluster, opened by a standalone broker."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} belongs to a broker of a cluster, whose metadata is in the coordination"
            " service: set zookeeper.connect"
        )
