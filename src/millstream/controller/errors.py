"""Why a change of topics is refused, and why a start on damaged metadata is."""

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId


class InvalidTopicName(OperatingError):
    """A name that Kafka's rules forbid, or that metrics could not tell from an existing one."""


class TopicExists(OperatingError):
    """There is a topic of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"topic {name!r} already exists")


class UnknownTopic(OperatingError):
    """There is no topic of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no topic {name!r}")


class InvalidPartitionCount(OperatingError):
    """A partition count below one, above the limit, or no increase where one was asked for."""


class InvalidReplicationFactor(OperatingError):
    """Fewer than one replica, or more than there are brokers."""


class InvalidReplicaAssignment(OperatingError):
    """A manual assignment that names no brokers, unknown ones, one twice, or leaves gaps."""


class InvalidRequest(OperatingError):
    """Parts of the request contradict each other."""


class NullConfigValue(OperatingError):
    """A topic's setting was given without a value."""


class TooManyPartitions(OperatingError):
    """One request would create more partitions than any request may."""

    def __init__(self, *, asked: int, limit: int) -> None:
        self.asked, self.limit = asked, limit
        super().__init__(f"{asked} partitions in one request, the limit is {limit}")


class TopicDeletionDisabled(OperatingError):
    """`delete.topic.enable` is false."""

    def __init__(self) -> None:
        super().__init__("topic deletion is disabled by delete.topic.enable")


class DamagedMetadata(OperatingError):
    """Files of the controller that cannot be believed; nothing was changed or dropped."""

    def __init__(self, problems: dict[str, str]) -> None:
        self.problems = problems
        told = "; ".join(f"{path}: {reason}" for path, reason in sorted(problems.items()))
        super().__init__(
            f"damaged metadata: {told}. Restore the files from a copy; a topic's file may also be"
            " moved away: its logs are then taken in again, without its configuration"
        )


class MetadataMissing(OperatingError):
    """Log directories of ours, without the one that has the metadata."""

    def __init__(self, *, mark: str, home: str) -> None:
        self.mark, self.home = mark, home
        super().__init__(
            f"the metadata of this broker is in the log directory {home}, which is not in log.dirs,"
            " not mounted or emptied. Without it the topics would be known neither with their"
            " settings nor in full. Bring it back; or, to begin anew with the logs that are here,"
            f" remove {mark} from every log directory"
        )


class DuplicateDirectoryId(OperatingError):
    """Two log directories with one id: one is a copy, or a second path to the other."""

    def __init__(self, *, paths: tuple[str, str]) -> None:
        self.paths = paths
        super().__init__(
            f"{paths[0]} and {paths[1]} have the same directory.id: one is a copy of the other, or"
            " they are one directory. Take one of them out of log.dirs"
        )


class WrongBrokerId(OperatingError):
    """A data directory of another broker."""

    def __init__(self, *, path: str, ours: BrokerId, theirs: int) -> None:
        self.path, self.ours, self.theirs = path, ours, theirs
        super().__init__(
            f"{path} belongs to broker {theirs}, this one is {ours}: check node.id and log.dirs"
        )


class InconsistentClusterId(OperatingError):
    """Data directories of different clusters."""

    def __init__(self, *, path: str, ours: str, theirs: str) -> None:
        self.path, self.ours, self.theirs = path, ours, theirs
        super().__init__(f"{path} belongs to cluster {theirs}, the others to {ours}")


class NotOfThisCluster(OperatingError):
    """A data directory whose logs the cluster would not know, and so would delete."""

    def __init__(self, directory: str, reason: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} cannot be used in this cluster: {reason}. Without zookeeper.connect its"
            " broker is alone, as before; a broker of a cluster begins with directories of its own,"
            " or with those of a broker that was alone if the cluster is a new one"
        )


class OfACluster(OperatingError):
    """A data directory of a broker in a cluster, for a broker that is alone."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} belongs to a broker of a cluster, whose metadata is in the coordination"
            " service: set zookeeper.connect"
        )
