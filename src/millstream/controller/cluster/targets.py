"""The target of a reassignment (KIP-455), one partition at a time. No I/O."""

from millstream.controller.image import PartitionImage
from millstream.model.ids import BrokerId

Replicas = tuple[BrokerId, ...]


def is_reassigning(partition: PartitionImage) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding or partition.removing)


def target(partition: PartitionImage) -> Replicas:
    """The replicas once it is done."""
    return tuple(one for one in partition.replicas if one not in partition.removing)


def original(partition: PartitionImage) -> Replicas:
    """The replicas as they were before it began."""
    return tuple(one for one in partition.replicas if one not in partition.adding)


def completed(partition: PartitionImage, isr: Replicas) -> tuple[PartitionImage, Replicas]:
    """The partition after its reassignment, if this in-sync set completes it.

    It is complete when all target replicas are in sync; then the others are removed.
    """
    if not is_reassigning(partition):
        return partition, isr
    replicas = target(partition)
    if not replicas or not set(replicas).issubset(isr):
        return partition, isr
    after = partition._replace(
        replicas=replicas,
        adding=(),
        removing=(),
        elr=tuple(one for one in partition.elr if one in replicas),
    )
    return after, tuple(one for one in isr if one in replicas)
