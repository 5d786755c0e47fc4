"""The end of PullMetadata at the controller: pieces of one answer, and errors where it is not."""

from collections.abc import Awaitable, Callable
from typing import cast

from kits.controller.controllers_kit import Cluster, cluster_played, new_topic
from kits.controller.membership_kit import happens
from millstream.controller.cluster.chunks import endpoints_of
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.port import ClusterController
from millstream.controller.cluster.pull_metadata import TRANSFERS_MAX, MetadataSource
from millstream.controller.image import Endpoint
from millstream.model.ids import BrokerId
from millstream.testing.sim.virtual_loop import run
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import PullMetadataRequest


def test_who_is_not_the_controller_says_so() -> None:
    async def story() -> None:
        source = MetadataSource(lambda: None)
        response = await source.answer(PullMetadataRequest(broker_id=1))
        assert response.error_code == ErrorCode.NOT_CONTROLLER
        assert (response.controller_id, response.controller_endpoints) == (-1, [])

    run(story)


def test_who_knows_the_controller_points_to_it() -> None:
    async def story() -> None:
        known = Registration(BrokerId(7), (Endpoint("PLAINTEXT", "host", 9092),))
        source = MetadataSource(lambda: None, lambda: known)
        response = await source.answer(PullMetadataRequest(broker_id=1))
        assert response.error_code == ErrorCode.NOT_CONTROLLER
        assert response.controller_id == 7
        assert endpoints_of(response.controller_endpoints) == known.endpoints

    run(story)


def with_controller(story: Callable[[ClusterController], Awaitable[None]]) -> None:
    async def whole(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 1000, 1)])
        await story(cast("ClusterController", controller))

    cluster_played(1, whole, count=1)


def test_pieces_are_asked_for_by_number_and_forgotten_when_all_went() -> None:
    async def story(controller: ClusterController) -> None:
        source = MetadataSource(lambda: controller)
        first = await source.answer(PullMetadataRequest(broker_id=1))
        assert first.chunk_count == 3
        other = await source.answer(PullMetadataRequest(broker_id=2))
        assert other.transfer_id != first.transfer_id
        for chunk in (1, 1, 2):  # an answer may get lost
            request = PullMetadataRequest(broker_id=1, transfer_id=first.transfer_id, chunk=chunk)
            response = await source.answer(request)
            assert (response.error_code, response.chunk) == (ErrorCode.NONE, chunk)
        gone = await source.answer(
            PullMetadataRequest(broker_id=1, transfer_id=first.transfer_id, chunk=2)
        )
        assert gone.error_code == ErrorCode.SNAPSHOT_NOT_FOUND
        beyond = await source.answer(
            PullMetadataRequest(broker_id=2, transfer_id=other.transfer_id, chunk=3)
        )
        assert beyond.error_code == ErrorCode.SNAPSHOT_NOT_FOUND

    with_controller(story)


def test_answers_that_nobody_fetches_are_bounded() -> None:
    async def story(controller: ClusterController) -> None:
        source = MetadataSource(lambda: controller)
        first = await source.answer(PullMetadataRequest(broker_id=1))
        for broker_id in range(2, TRANSFERS_MAX + 2):
            await source.answer(PullMetadataRequest(broker_id=broker_id))
        assert len(source._transfers) == TRANSFERS_MAX
        gone = await source.answer(
            PullMetadataRequest(broker_id=1, transfer_id=first.transfer_id, chunk=1)
        )
        assert gone.error_code == ErrorCode.SNAPSHOT_NOT_FOUND

    with_controller(story)


def test_a_broker_whose_pieces_were_forgotten_starts_again() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await cluster.all_know()
        source = cluster.leader.source
        whole = source._next_chunk
        forgotten: list[int] = []

        def forget_once(broker_id: object, request: PullMetadataRequest) -> object:
            if not forgotten:
                forgotten.append(request.chunk)
                source._transfers.clear()
            return whole(broker_id, request)  # type: ignore[arg-type]

        source._next_chunk = forget_once  # type: ignore[assignment, method-assign]
        await controller.create_topics([new_topic("t", 1000, 2)])
        await happens(lambda: forgotten, "it was asked for the second piece")
        await cluster.all_know()

    cluster_played(2, story, count=2)
