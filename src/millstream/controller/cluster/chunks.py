"""Metadata deltas as messages: cut into chunks by the controller, assembled by brokers. Pure.

The number of partitions in a chunk is limited so that encoding or decoding it takes a few
milliseconds. All chunks of one answer are of one image, which never changes: what is assembled is
that image, or nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.port import FeedPosition, MetadataDelta
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageChange,
    PartitionImage,
    TopicImage,
)
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import (
    PulledBroker,
    PulledBrokerSettings,
    PulledEndpoint,
    PulledPartition,
    PulledSetting,
    PulledTopic,
    PullMetadataResponse,
)

CHUNK_PARTITIONS: Final = 400
"""Partitions of one chunk; a topic counts as one more. About five milliseconds to encode."""


class BrokenTransfer(OperatingError):
    """The chunks do not make an image: request a snapshot."""


class TopicSlice(NamedTuple):
    """Some partitions of a topic."""

    topic: TopicImage
    indexes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A delta cut into chunks; nothing is encoded yet."""

    delta: MetadataDelta
    chunks: list[list[TopicSlice]] = field(default_factory=list)
    deleted: list[TopicId] = field(default_factory=list)
    has_brokers: bool = True
    has_broker_settings: bool = True


# -- the controller's side ---------------------------------------------------------------------


def cut_chunks_steps(
    delta: MetadataDelta, *, chunk_partitions: int = CHUNK_PARTITIONS
) -> StepGenerator[Transfer]:
    """Cut a delta into chunks, in steps; no chunks where nothing is new."""
    changes = delta.changes
    if changes is None:
        slices: Iterable[TopicSlice] = (
            TopicSlice(topic, range(len(topic.partitions))) for topic in delta.image.topics.values()
        )
        transfer = Transfer(delta)
    elif not changes:
        return Transfer(delta)
    else:
        transfer = Transfer(
            delta,
            deleted=[topic.topic_id for change in changes for topic in change.deleted],
            has_brokers=any(change.brokers_changed for change in changes),
            has_broker_settings=any(change.brokers_reconfigured for change in changes),
        )
        slices = merge_changes(delta.image, changes)
    chunks: list[list[TopicSlice]] = [[]]
    room = chunk_partitions
    pace = YieldCounter()
    for part in slices:
        at = 0
        while at < len(part.indexes) or at == 0:
            if room <= 1:
                chunks.append([])
                room = chunk_partitions
            taken = part.indexes[at : at + room - 1]
            chunks[-1].append(TopicSlice(part.topic, taken))
            room -= len(taken) + 1
            at += max(1, len(taken))
        if pace.is_due():
            yield None
    transfer.chunks.extend(chunks)
    return transfer


def merge_changes(image: ClusterImage, changes: Sequence[ImageChange]) -> list[TopicSlice]:
    """The topics and partitions that changes touch, as they are in the resulting image."""
    touched: dict[TopicId, set[int]] = {}
    for change in changes:
        for topic in change.created:
            touched.setdefault(topic.topic_id, set()).update(range(len(topic.partitions)))
        for topic in change.reconfigured:
            touched.setdefault(topic.topic_id, set())
        for grown in change.grown:
            new = range(grown.first_new_partition, len(grown.topic.partitions))
            touched.setdefault(grown.topic.topic_id, set()).update(new)
        for moved in change.moved:
            touched.setdefault(moved.topic.topic_id, set()).add(moved.partition.index)
    found = image.topics_by_id
    return [TopicSlice(found[one], sorted(touched[one])) for one in touched if one in found]


def response_of(transfer: Transfer, *, transfer_id: int, chunk: int) -> PullMetadataResponse:
    """One chunk as a message."""
    delta = transfer.delta
    image = delta.image
    response = PullMetadataResponse(
        controller_id=image.controller_id,
        cluster_id=image.cluster_id,
        controller_epoch=delta.position.controller_epoch,
        version=delta.position.version,
        is_snapshot=delta.changes is None,
        transfer_id=transfer_id,
        chunk=chunk,
        chunk_count=len(transfer.chunks),
    )
    if not transfer.chunks:
        return response
    response.topics = [_pulled_topic(one) for one in transfer.chunks[chunk]]
    if chunk == 0:
        response.deleted_topics = list(transfer.deleted)
        if transfer.has_brokers:
            response.brokers = [_pulled_broker(one) for one in image.brokers.values()]
        if transfer.has_broker_settings:
            response.broker_settings = [
                PulledBrokerSettings(broker=name, settings=_pulled_settings(settings))
                for name, settings in image.broker_configs.items()
            ]
    return response


def _pulled_topic(part: TopicSlice) -> PulledTopic:
    topic = part.topic
    return PulledTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=len(topic.partitions),
        settings=_pulled_settings(topic.configs),
        partitions=[_pulled_partition(topic.partitions[index]) for index in part.indexes],
    )


def _pulled_settings(settings: Mapping[str, str]) -> list[PulledSetting]:
    return [PulledSetting(name=name, value=value) for name, value in settings.items()]


def _pulled_partition(one: PartitionImage) -> PulledPartition:
    return PulledPartition(
        index=one.index,
        leader=one.leader,
        leader_epoch=one.leader_epoch,
        partition_epoch=one.partition_epoch,
        replicas=list(one.replicas),
        isr=list(one.isr),
        elr=list(one.elr),
        last_known_leader=one.last_known_leader,
        adding=list(one.adding),
        removing=list(one.removing),
        lost=list(one.lost),
        full=list(one.full),
    )


def _pulled_broker(one: BrokerImage) -> PulledBroker:
    return PulledBroker(
        broker_id=one.broker_id,
        epoch=one.epoch,
        rack=one.rack,
        is_fenced=one.is_fenced,
        is_leaving=one.is_leaving,
        endpoints=_pulled_endpoints(one.endpoints),
    )


def _pulled_endpoints(endpoints: Sequence[Endpoint]) -> list[PulledEndpoint]:
    return [
        PulledEndpoint(
            listener=one.listener,
            host=one.host,
            port=one.port,
            security_protocol=one.security_protocol,
        )
        for one in endpoints
    ]


def not_controller(controller: Registration | None) -> PullMetadataResponse:
    """The answer of a broker that is not the controller, naming the controller if it is known."""
    response = PullMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if controller is not None:
        response.controller_id = controller.broker_id
        response.controller_endpoints = _pulled_endpoints(controller.endpoints)
    return response


# -- the broker's side -------------------------------------------------------------------------


class AssembledImage(NamedTuple):
    """The image that the chunks make."""

    position: FeedPosition
    image: ClusterImage
    """Unchanged topics are the same objects as before."""


class ChunkAssembler:
    """Assembles the chunks of one answer; the first one says how many there are."""

    def __init__(self, base: ClusterImage, first: PullMetadataResponse) -> None:
        self._first = first
        self._base_topics = {} if first.is_snapshot else base.topics_by_id
        self._base = base
        self._next_chunk = 0
        self._partitions: dict[TopicId, list[PartitionImage | None]] = {}
        self._heads: dict[TopicId, PulledTopic] = {}

    @property
    def next_chunk(self) -> int | None:
        """The chunk to request next; None when all are there."""
        return self._next_chunk if self._next_chunk < self._first.chunk_count else None

    def add(self, response: PullMetadataResponse) -> None:
        """Add the next chunk; raises BrokenTransfer for one of another transfer."""
        first = self._first
        is_same = (response.controller_epoch, response.version, response.transfer_id) == (
            first.controller_epoch,
            first.version,
            first.transfer_id,
        )
        if not is_same or response.chunk != self._next_chunk:
            raise BrokenTransfer(f"chunk {response.chunk} does not belong to this answer")
        self._next_chunk += 1
        for topic in response.topics:
            self._add_topic(topic)

    def _add_topic(self, topic: PulledTopic) -> None:
        topic_id = TopicId(topic.topic_id)
        self._heads[topic_id] = topic
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            known = self._base_topics.get(topic_id)
            partitions = list(known.partitions) if known is not None else []
            if len(partitions) > topic.partition_count:
                raise BrokenTransfer(f"topic {topic.name} has lost partitions")
            partitions += [None] * (topic.partition_count - len(partitions))
            self._partitions[topic_id] = partitions
        for one in topic.partitions:
            if not 0 <= one.index < len(partitions):
                raise BrokenTransfer(f"topic {topic.name} has no partition {one.index}")
            partitions[one.index] = _partition_image(one)

    def assemble(self) -> AssembledImage:
        """The assembled image; raises BrokenTransfer where something is missing."""
        first = self._first
        if self.next_chunk is not None:
            raise BrokenTransfer(f"chunk {self.next_chunk} is missing")
        topics = {topic.topic_id: topic for topic in self._base_topics.values()}
        for gone in first.deleted_topics:
            topics.pop(TopicId(gone), None)
        for topic_id, head in self._heads.items():
            topics[topic_id] = self._topic_image(topic_id, head)
        by_name = {topic.name: topic for topic in topics.values()}
        if len(by_name) != len(topics):
            raise BrokenTransfer("two topics have one name")
        image = ClusterImage(
            cluster_id=first.cluster_id,
            controller_id=BrokerId(first.controller_id),
            brokers=_brokers_of(first, self._base),
            topics=by_name,
            broker_configs=_broker_configs_of(first, self._base),
            version=first.version,
            topics_by_id=topics,
        )
        position = FeedPosition(first.controller_epoch, first.version)
        return AssembledImage(position, image)

    def _topic_image(self, topic_id: TopicId, head: PulledTopic) -> TopicImage:
        partitions = self._partitions[topic_id]
        known = tuple(one for one in partitions if one is not None)
        if len(known) < len(partitions):
            raise BrokenTransfer(f"topic {head.name} came without all of its partitions")
        configs = {one.name: one.value for one in head.settings}
        return TopicImage(head.name, topic_id, known, configs)


def _brokers_of(first: PullMetadataResponse, base: ClusterImage) -> Mapping[BrokerId, BrokerImage]:
    if first.brokers is None:
        return base.brokers
    return {BrokerId(one.broker_id): _broker_image(one) for one in first.brokers}


def _broker_configs_of(
    first: PullMetadataResponse, base: ClusterImage
) -> Mapping[str, Mapping[str, str]]:
    if first.broker_settings is None:
        return base.broker_configs
    return {
        one.broker: {setting.name: setting.value for setting in one.settings}
        for one in first.broker_settings
    }


def endpoints_of(pulled: Sequence[PulledEndpoint]) -> tuple[Endpoint, ...]:
    """The endpoints as they are in an image."""
    return tuple(
        Endpoint(one.listener, one.host, one.port, one.security_protocol) for one in pulled
    )


def _broker_image(one: PulledBroker) -> BrokerImage:
    return BrokerImage(
        BrokerId(one.broker_id),
        endpoints_of(one.endpoints),
        one.rack,
        is_fenced=one.is_fenced,
        epoch=BrokerEpoch(one.epoch),
        is_leaving=one.is_leaving,
    )


def _partition_image(one: PulledPartition) -> PartitionImage:
    return PartitionImage(
        index=one.index,
        replicas=_brokers(one.replicas),
        isr=_brokers(one.isr),
        leader=BrokerId(one.leader),
        leader_epoch=LeaderEpoch(one.leader_epoch),
        partition_epoch=one.partition_epoch,
        elr=_brokers(one.elr),
        last_known_leader=BrokerId(one.last_known_leader),
        adding=_brokers(one.adding),
        removing=_brokers(one.removing),
        lost=_brokers(one.lost),
        full=_brokers(one.full),
    )


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))
