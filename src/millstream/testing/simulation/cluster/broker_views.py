"""Views of a running broker: the state of its parts, and the content of its files."""

from collections.abc import Callable
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary
from zlib import crc32

from millstream.broker.broker import Broker
from millstream.replication.partition import Partition
from millstream.storage.log.log import Log
from millstream.testing.history.cluster_views import (
    BatchView,
    BrokerView,
    LeaderClaim,
    PartitionKey,
    ReplicaView,
    batches_in,
)
from millstream.testing.sim.disk import SimDisk

Fingerprint = tuple[object, ...]

_CACHED_MAX: Final = 4_000
_CACHE: dict[Fingerprint, list[BatchView]] = {}
"""Batches of a file, or of all files of a log; most have not changed since the last view."""

_COUNT: Final = count(1)
_NUMBERS: Final[WeakKeyDictionary[Log, int]] = WeakKeyDictionary()
"""Numbers of logs: equal only for the same log."""


def view_of(
    broker: Broker, disk: SimDisk, *, incarnation: int, has_lost_session: bool
) -> BrokerView:
    """The view of one broker."""
    replicas = {}
    for log in broker.logs:
        if not has_files(disk, log):
            continue
        replica = _replica(broker.broker_id, log, disk)
        replicas[replica.key] = replica
    claims = {claim.key: claim for claim in (_claim(broker, one) for one in broker.partitions)}
    return BrokerView(
        broker.broker_id,
        incarnation,
        broker.cluster.member.broker_epoch if broker.cluster is not None else -1,
        has_lost_session,
        replicas,
        claims,
    )


def _key(log: Log) -> PartitionKey:
    return PartitionKey(log.partition.topic, str(log.context.topic_id), log.partition.partition)


def _replica(broker: int, log: Log, disk: SimDisk) -> ReplicaView:
    return ReplicaView(
        broker,
        _key(log),
        log.log_start,
        log.log_end,
        log.high_watermark,
        log.last_stable_offset,
        log.recovery_point,
        stored_batches(disk, log.context.directory),
        _NUMBERS.setdefault(log, next(_COUNT)),
    )


def _claim(broker: Broker, partition: Partition) -> LeaderClaim:
    """Of a partition that the broker leads."""
    state = partition.state
    return LeaderClaim(
        broker.broker_id,
        _key(partition.log),
        partition.leader_epoch,
        tuple(state.isr),
        state.partition_epoch,
    )


def has_files(disk: SimDisk, log: Log) -> bool:
    """False while its log directory is missing."""
    return disk.storage.live.find(log.context.directory) is not None


def stored_batches(disk: SimDisk, directory: str) -> list[BatchView]:
    """As the page cache has them; the same list while the files are the same."""
    live = disk.storage.live
    names = [name for name in sorted(live.directory(directory).entries) if name.endswith(".log")]
    contents = [bytes(live.file(f"{directory}/{name}").content) for name in names]
    prints = tuple((crc32(data), len(data)) for data in contents)
    return _cached(prints, lambda: [one for data in contents for one in _batches_of(data)])


def _batches_of(data: bytes) -> list[BatchView]:
    return _cached((crc32(data), len(data)), lambda: batches_in(data))


def _cached(fingerprint: Fingerprint, read: Callable[[], list[BatchView]]) -> list[BatchView]:
    known = _CACHE.get(fingerprint)
    if known is None:
        if len(_CACHE) >= _CACHED_MAX:
            _CACHE.clear()
        known = _CACHE[fingerprint] = read()
    return known
