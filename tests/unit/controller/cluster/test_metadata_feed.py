"""The feed and its way over the wire: changes or everything, never something between."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from millstream.controller.cluster.chunks import (
    BrokenTransfer,
    ChunkAssembler,
    Transfer,
    cut_chunks_steps,
    response_of,
)
from millstream.controller.cluster.differences import difference
from millstream.controller.cluster.metadata_feed import NO_POSITION, Feed, partition_count
from millstream.controller.cluster.port import FeedPosition, MetadataDelta
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageChange,
    PartitionImage,
    TopicImage,
)
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, TopicId
from millstream.model.invariant import InvariantViolated
from millstream.runtime.randomness import SeededRandomness
from millstream.runtime.scheduler import run_blocking
from millstream.wire.messages.pull_metadata import PullMetadataResponse

ONE, TWO = BrokerId(1), BrokerId(2)


def partition(index: int, epoch: int = 0) -> PartitionImage:
    return PartitionImage(
        index,
        (ONE, TWO),
        (ONE,) if epoch % 2 else (ONE, TWO),
        ONE,
        LeaderEpoch(epoch),
        epoch,
        elr=(TWO,) if epoch % 2 else (),
        adding=(TWO,) if epoch % 3 == 2 else (),
        lost=(TWO,) if epoch % 3 == 1 else (),
    )


def topic(name: str, count: int, *, number: int, **configs: str) -> TopicImage:
    partitions = tuple(partition(index) for index in range(count))
    return TopicImage(name, TopicId(UUID(int=number)), partitions, configs)


def empty() -> ClusterImage:
    brokers = {
        ONE: BrokerImage(ONE, (Endpoint("PLAINTEXT", "one", 9092),), "rack", epoch=BrokerEpoch(5)),
        TWO: BrokerImage(TWO, (), None, is_fenced=True, epoch=BrokerEpoch(4), is_leaving=True),
    }
    return ClusterImage(
        cluster_id="c",
        controller_id=ONE,
        brokers=brokers,
        topics={},
        broker_configs={"": {"a": "b"}, "1": {}},
    )


class History:
    """A feed whose images change at random."""

    def __init__(self, seed: int, **bounds: int) -> None:
        self.random = SeededRandomness(seed)
        self.number = 0
        self.feed = Feed(7, empty(), **bounds)
        self.images = [self.feed.image]

    def step(self) -> None:
        image = self.feed.image
        names = sorted(image.topics)
        match self.random.integer(0, 6):
            case 0 | 1:
                self.number += 1
                name = f"t{self.random.integer(0, 5)}"
                if name not in image.topics:
                    made = topic(name, self.random.integer(1, 9), number=self.number)
                    self._add(image.changed(put=[made]))
            case 2 if names:
                self._add(image.changed(drop=[image.topics[self.random.choice(names)]]))
            case 3 if names:
                old = image.topics[self.random.choice(names)]
                grown = (*old.partitions, partition(len(old.partitions)))
                self._add(image.changed(put=[old._replace(partitions=grown)]))
            case 4 if names:
                old = image.topics[self.random.choice(names)]
                self._add(image.changed(put=[old._replace(configs={"n": str(self.number)})]))
            case 5 if names:
                old = image.topics[self.random.choice(names)]
                at = self.random.integer(0, len(old.partitions))
                moved = list(old.partitions)
                moved[at] = partition(at, moved[at].partition_epoch + 1)
                self._add(image.changed(put=[old._replace(partitions=tuple(moved))]))
            case _:
                configs = {"": {"a": str(self.number)}}
                self._add(image.changed(broker_configs=configs))

    def _add(self, image: ClusterImage) -> None:
        self.feed.add(image, difference(self.feed.image, image))
        self.images.append(image)


def answers(delta: MetadataDelta, chunk_partitions: int) -> list[PullMetadataResponse]:
    """Over the wire."""
    transfer: Transfer = run_blocking(cut_chunks_steps(delta, chunk_partitions=chunk_partitions))
    count = max(1, len(transfer.chunks))
    made = [response_of(transfer, transfer_id=3, chunk=chunk) for chunk in range(count)]
    return [PullMetadataResponse.decode(one.encode(0), 0) for one in made]


def put_together(base: ClusterImage, chunks: Sequence[PullMetadataResponse]) -> ClusterImage:
    assembly = ChunkAssembler(base, chunks[0])
    for one in chunks:
        assembly.add(one)
    assert assembly.next_chunk is None
    return assembly.assemble().image


def is_same(one: ClusterImage, other: ClusterImage) -> bool:
    return (
        dict(one.topics) == dict(other.topics)
        and dict(one.topics_by_id) == dict(other.topics_by_id)
        and dict(one.brokers) == dict(other.brokers)
        and dict(one.broker_configs) == dict(other.broker_configs)
        and (one.cluster_id, one.controller_id, one.version)
        == (other.cluster_id, other.controller_id, other.version)
    )


@pytest.mark.parametrize("seed", range(1, 21))
def test_from_any_position_the_pieces_make_the_newest_image(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/controller/cluster/test_metadata_feed.py -k 'newest_image and [SEED]'
    """
    history = History(seed, changes_max=12)
    for _ in range(30):
        history.step()
    newest = history.feed.image
    kinds = set()
    for image in history.images:
        delta = history.feed.since(FeedPosition(7, image.version))
        if image is newest:
            assert delta.changes == []
            continue
        kinds.add(delta.changes is None)
        for size in (2, 5, 1000):
            assert is_same(put_together(image, answers(delta, size)), newest)
        if delta.changes is not None:
            assert difference(image, put_together(image, answers(delta, 5))) == difference(
                image, newest
            )
    assert kinds == {True, False}


def test_what_the_feed_does_not_remember_is_a_snapshot() -> None:
    feed = Feed(7, empty(), changes_max=2, partitions_max=6)
    versions = [feed.image.version]
    for number in range(1, 5):
        image = feed.image.changed(put=[topic(f"t{number}", 1, number=number)])
        feed.add(image, difference(feed.image, image))
        versions.append(image.version)
    assert feed.since(NO_POSITION).changes is None
    assert feed.since(FeedPosition(6, versions[-1])).changes is None
    assert feed.since(FeedPosition(7, versions[0])).changes is None
    assert feed.since(FeedPosition(7, versions[-1] + 1)).changes is None
    two = feed.since(FeedPosition(7, versions[2])).changes
    assert two is not None
    assert [change.created[0].name for change in two] == ["t3", "t4"]
    large = feed.image.changed(put=[topic("large", 7, number=99)])
    feed.add(large, difference(feed.image, large))
    assert feed.since(FeedPosition(7, versions[-1])).changes is None
    assert feed.since(feed.position).changes == []


def test_a_feed_never_goes_back() -> None:
    feed = Feed(7, empty())
    with pytest.raises(InvariantViolated):
        feed.add(feed.image, ImageChange())


def test_changes_are_weighed_by_their_partitions() -> None:
    before = empty().changed(put=[topic("a", 3, number=1)])
    after = before.changed(put=[topic("b", 4, number=2)])
    assert partition_count(difference(before, after)) == 5
    assert partition_count(difference(after, before)) == 1


def test_no_piece_is_larger_than_allowed_and_a_large_topic_is_spread() -> None:
    image = empty().changed(put=[topic("large", 25, number=1), topic("small", 1, number=2)])
    delta = MetadataDelta(FeedPosition(7, image.version), image, None)
    chunks = answers(delta, 10)
    assert len(chunks) == 3
    for one in chunks:
        assert sum(len(part.partitions) + 1 for part in one.topics) <= 10
    assert chunks[0].brokers is not None
    assert all(one.brokers is None for one in chunks[1:])


def test_pieces_that_do_not_belong_together_are_refused() -> None:
    image = empty().changed(put=[topic("large", 25, number=1)])
    delta = MetadataDelta(FeedPosition(7, image.version), image, None)
    first, second, third = answers(delta, 10)
    assembly = ChunkAssembler(empty(), first)
    assembly.add(first)
    with pytest.raises(BrokenTransfer):
        assembly.assemble()
    with pytest.raises(BrokenTransfer):
        assembly.add(third)
    second.version += 1
    with pytest.raises(BrokenTransfer):
        assembly.add(second)


def test_changes_on_the_wrong_image_are_refused() -> None:
    """A broker that lacks a topic cannot make it up from some of its partitions."""
    before = empty().changed(put=[topic("t", 3, number=1)])
    moved = [partition(0, 1), *before.topics["t"].partitions[1:]]
    after = before.changed(put=[before.topics["t"]._replace(partitions=tuple(moved))])
    delta = MetadataDelta(FeedPosition(7, after.version), after, [difference(before, after)])
    (only,) = answers(delta, 10)
    assembly = ChunkAssembler(empty(), only)
    assembly.add(only)
    with pytest.raises(BrokenTransfer):
        assembly.assemble()
