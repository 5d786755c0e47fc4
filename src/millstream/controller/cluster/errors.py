"""What the controller of a cluster refuses, beyond what a standalone controller does."""

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition


class NotController(OperatingError):
    """This broker is not, or no longer, the controller."""

    def __init__(self) -> None:
        super().__init__("this broker is not the controller")


class StaleBrokerEpoch(OperatingError):
    """The request is from a replaced, or unknown, incarnation of a broker."""

    def __init__(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        self.broker_id, self.epoch = broker_id, epoch
        super().__init__(f"broker {broker_id} is not registered with epoch {epoch}")


class InvalidUpdateVersion(OperatingError):
    """A change of a partition that is based on an older partition epoch."""

    def __init__(self, partition: TopicPartition, *, ours: int, theirs: int) -> None:
        self.partition, self.ours, self.theirs = partition, ours, theirs
        super().__init__(f"{partition} has partition epoch {ours}, not {theirs}")


class IneligibleReplica(OperatingError):
    """A replica that may not join the ISR: it is gone, leaving, lost, or was restarted since."""

    def __init__(self, partition: TopicPartition, broker_id: BrokerId) -> None:
        self.partition, self.broker_id = partition, broker_id
        super().__init__(f"broker {broker_id} is not eligible to join the ISR of {partition}")


class NoReplicaThere(OperatingError):
    """A broker reports on a partition of which it has no replica."""

    def __init__(self, partition: TopicPartition, broker_id: BrokerId) -> None:
        self.partition, self.broker_id = partition, broker_id
        super().__init__(f"broker {broker_id} has no replica of {partition}")


class ElectionNotNeeded(OperatingError):
    """The partition already has the leader that the election would choose."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition}: election not needed, it already has that leader")


class PreferredLeaderNotAvailable(OperatingError):
    """The first replica is not alive, or not in sync."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"the preferred leader of {partition} is not available")


class EligibleLeadersNotAvailable(OperatingError):
    """No replica that may lead is alive."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"no eligible leader of {partition} is available")


class NoReassignmentInProgress(OperatingError):
    """There is no reassignment to cancel."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition} is not being reassigned")


class BrokerIdNotRegistered(OperatingError):
    """No such broker is known."""

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        super().__init__(f"broker {broker_id} is not registered")


class DamagedNode(OperatingError):
    """A node of the coordination service whose content is invalid."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"node {path}: {reason}")
