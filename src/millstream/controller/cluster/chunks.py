"""News of the controller as messages: cut into pieces there, put together again here. Pure.

A piece has so many partitions at most that to encode or decode it takes a few milliseconds. All
pieces of one answer are of one image, which never changes: what is put together is that image, or
nothing.
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

PIECE_PARTITIONS: Final = 400
"""Partitions of one piece; a topic counts for one more. About five milliseconds to encode."""


class BrokenTransfer(OperatingError):
    """The pieces do not make an image: ask for a snapshot."""


class Extent(NamedTuple):
    """Some partitions of a topic."""

    topic: TopicImage
    indexes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Transfer:
    """News, cut into pieces; nothing is encoded yet."""

    news: MetadataDelta
    pieces: list[list[Extent]] = field(default_factory=list)
    deleted: list[TopicId] = field(default_factory=list)
    has_brokers: bool = True
    has_broker_settings: bool = True


# -- the controller's side ---------------------------------------------------------------------


def cut_chunks_steps(
    news: MetadataDelta, *, piece_partitions: int = PIECE_PARTITIONS
) -> StepGenerator[Transfer]:
    """Cut news into pieces, in steps; no pieces where nothing is new."""
    changes = news.changes
    if changes is None:
        extents: Iterable[Extent] = (
            Extent(topic, range(len(topic.partitions))) for topic in news.image.topics.values()
        )
        transfer = Transfer(news)
    elif not changes:
        return Transfer(news)
    else:
        transfer = Transfer(
            news,
            deleted=[topic.topic_id for change in changes for topic in change.deleted],
            has_brokers=any(change.brokers_changed for change in changes),
            has_broker_settings=any(change.brokers_reconfigured for change in changes),
        )
        extents = merged(news.image, changes)
    pieces: list[list[Extent]] = [[]]
    room = piece_partitions
    pace = YieldCounter()
    for extent in extents:
        at = 0
        while at < len(extent.indexes) or at == 0:
            if room <= 1:
                pieces.append([])
                room = piece_partitions
            taken = extent.indexes[at : at + room - 1]
            pieces[-1].append(Extent(extent.topic, taken))
            room -= len(taken) + 1
            at += max(1, len(taken))
        if pace.is_due():
            yield None
    transfer.pieces.extend(pieces)
    return transfer


def merged(image: ClusterImage, changes: Sequence[ImageChange]) -> list[Extent]:
    """What changes are about, as it is in the image that they lead to."""
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
    return [Extent(found[one], sorted(touched[one])) for one in touched if one in found]


def response_of(transfer: Transfer, *, transfer_id: int, piece: int) -> PullMetadataResponse:
    """One piece as a message."""
    news = transfer.news
    image = news.image
    response = PullMetadataResponse(
        controller_id=image.controller_id,
        cluster_id=image.cluster_id,
        controller_epoch=news.position.controller_epoch,
        version=news.position.version,
        is_snapshot=news.changes is None,
        transfer_id=transfer_id,
        piece=piece,
        piece_count=len(transfer.pieces),
    )
    if not transfer.pieces:
        return response
    response.topics = [_pulled_topic(one) for one in transfer.pieces[piece]]
    if piece == 0:
        response.deleted_topics = list(transfer.deleted)
        if transfer.has_brokers:
            response.brokers = [_pulled_broker(one) for one in image.brokers.values()]
        if transfer.has_broker_settings:
            response.broker_settings = [
                PulledBrokerSettings(broker=name, settings=_pulled_settings(settings))
                for name, settings in image.broker_configs.items()
            ]
    return response


def _pulled_topic(extent: Extent) -> PulledTopic:
    topic = extent.topic
    return PulledTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=len(topic.partitions),
        settings=_pulled_settings(topic.configs),
        partitions=[_pulled_partition(topic.partitions[index]) for index in extent.indexes],
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
    """The answer of who is not, with who is, if that is known."""
    response = PullMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if controller is not None:
        response.controller_id = controller.broker_id
        response.controller_endpoints = _pulled_endpoints(controller.endpoints)
    return response


# -- the broker's side -------------------------------------------------------------------------


class Assembled(NamedTuple):
    """What the pieces came to."""

    position: FeedPosition
    image: ClusterImage
    """Topics that are as they were are the same objects as before."""


class ChunkAssembler:
    """Puts the pieces of one answer together; the first one tells how many there are."""

    def __init__(self, base: ClusterImage, first: PullMetadataResponse) -> None:
        self._first = first
        self._base_topics = {} if first.is_snapshot else base.topics_by_id
        self._base = base
        self._next_piece = 0
        self._partitions: dict[TopicId, list[PartitionImage | None]] = {}
        self._heads: dict[TopicId, PulledTopic] = {}

    @property
    def next_piece(self) -> int | None:
        """The piece that is asked for next; None when all are there."""
        return self._next_piece if self._next_piece < self._first.piece_count else None

    def add(self, response: PullMetadataResponse) -> None:
        """Take the next piece; raises BrokenTransfer for one of something else."""
        first = self._first
        is_same = (response.controller_epoch, response.version, response.transfer_id) == (
            first.controller_epoch,
            first.version,
            first.transfer_id,
        )
        if not is_same or response.piece != self._next_piece:
            raise BrokenTransfer(f"piece {response.piece} does not belong to this answer")
        self._next_piece += 1
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

    def assembled(self) -> Assembled:
        """The image; raises BrokenTransfer where something is missing."""
        first = self._first
        if self.next_piece is not None:
            raise BrokenTransfer(f"piece {self.next_piece} is missing")
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
        return Assembled(position, image)

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
    """As they are in an image."""
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
    )


def _brokers(ids: list[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))
