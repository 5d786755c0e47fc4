"""A broker's view of the cluster: asked from the controller again and again, told to all who care.

Only one question is under way at a time. The answer is everything, or what is new; either becomes
the next image as a whole. Another controller means another question at once. An image of an older
controller than the last one is refused: it was true once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from millstream.controller.cluster.active import ActiveController
from millstream.controller.cluster.candidate import Candidate
from millstream.controller.cluster.chunks import (
    Assembled,
    BrokenTransfer,
    ChunkAssembler,
    endpoints_of,
)
from millstream.controller.cluster.differences import difference
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.metadata_feed import NO_POSITION
from millstream.controller.cluster.port import ClusterController, FeedPosition
from millstream.controller.image import NO_LEADER, ClusterImage, Endpoint
from millstream.controller.subscribers import Subscriber, Subscribers
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.model.invariant import invariant
from millstream.observe.logs import get_logger
from millstream.rpc.backoff import Backoff
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.runtime.task_race import until
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse
from millstream.wire.primitives import MalformedFrame

log = get_logger("millstream.controller.metadata")

ASK_WAIT_S: Final = 5.0
"""How long the controller keeps a question while nothing is new."""

ANSWER_GRACE_S: Final = 10.0
"""Beyond that: what an answer may take before the connection is given up."""

ASK_BACKOFF: Final = Backoff(initial_s=0.02, max_s=0.5)

PURPOSE: Final = "metadata"

Located = ClusterController | Address
"""The controller: this broker's own, or where another one is."""


def locate(candidate: Candidate[ActiveController], listener: str) -> Located | None:
    """The controller as the candidate knows it; None while there is none, or no way to it."""
    if candidate.active is not None:
        return candidate.active
    if candidate.controller is None:
        return None
    for one in candidate.controller.endpoints:
        if one.listener == listener:
            return Address(one.host, one.port, PURPOSE)
    return None


class Refused(OperatingError):
    """An answer that is not taken: of an older controller, or an error code."""


class MetadataFollower:
    """Made, subscribed to, then `run` in a task; all on the loop's thread."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        locate: Callable[[], Located | None],
        connections: Connections,
        scheduler: CooperativeScheduler,
        randomness: Randomness,
        is_sure: Callable[[], bool] = lambda: True,
        pointed_to: Callable[[BrokerId, Sequence[Endpoint]], None] = lambda *_: None,
        cluster_id: str = "",
    ) -> None:
        """`locate` tells where the controller is now, as far as is known; `is_sure`: for certain.

        Else it is asked for one answer at a time: a controller that does not know of its successor
        has nothing new to say, and says so. `pointed_to` hears whom those who are not the
        controller take for it.
        """
        self._is_sure = is_sure
        self._pointed_to = pointed_to
        self._broker_id = broker_id
        self._locate = locate
        self._connections = connections
        self._scheduler = scheduler
        self._randomness = randomness
        self._subscribers = Subscribers()
        self._moved_controller = asyncio.Event()
        self._moved = asyncio.Event()
        self._failures = 0
        self.position = NO_POSITION
        self.image = ClusterImage(
            cluster_id=cluster_id,
            controller_id=NO_LEADER,
            brokers={},
            topics={},
            broker_configs={},
            version=-1,
        )
        """Empty until the first answer; see `is_known`."""
        self._taken = self.image
        """The last one that everybody was told of: what it says is led here is led."""

    @property
    def is_known(self) -> bool:
        """Whether there was an answer yet."""
        return self.position != NO_POSITION

    def subscribe(self, callback: Subscriber, *, prepare: Subscriber | None = None) -> None:
        """Call it on the loop after each change; `prepare` before it shows in the image."""
        self._subscribers.add(callback, prepare=prepare)

    def controller_changed(self) -> None:
        """Another broker is the controller, or none is: what was asked of the last one is void."""
        self._moved_controller.set()

    async def wait_for(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Return once the image is like that, and everybody here knows it.

        Whoever creates a topic and writes to it at once should find its leader. A time-out is the
        caller's.
        """
        while not condition(self._taken):
            await self._moved.wait()

    # -- asking ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._moved_controller = stop = asyncio.Event()
            located = self._locate()
            if located is None:
                await stop.wait()
                continue
            await until(stop, self._ask_repeatedly(located))

    async def _ask_repeatedly(self, located: Located) -> None:
        while True:
            try:
                news = await self._ask(located)
                self._check(news)
            except (RpcError, MalformedFrame, NotController, Refused, BrokenTransfer) as error:
                if isinstance(error, BrokenTransfer):
                    self.position = self.position._replace(version=-1)  # a snapshot, then
                self._failures += 1
                log.debug("fetching metadata from the controller failed", error=str(error))
                await asyncio.sleep(ASK_BACKOFF.delay_s(self._failures, self._randomness))
                return  # it may be somewhere else by now
            self._failures = 0
            if news.position != self.position:
                await self._take(news)
            if not self._is_sure():
                return

    async def _ask(self, located: Located) -> Assembled:
        if not isinstance(located, Address):
            told = await located.news(self.position, wait_s=ASK_WAIT_S)
            return Assembled(told.position, told.image)
        connection = await self._connections.get(located)
        first = await self._send(connection, transfer_id=0, piece=0)
        if first.piece_count == 0:
            position = FeedPosition(first.controller_epoch, first.version)
            return Assembled(position, self.image)
        assembly = ChunkAssembler(self.image, first)
        assembly.add(first)
        while (piece := assembly.next_piece) is not None:
            response = await self._send(connection, transfer_id=first.transfer_id, piece=piece)
            assembly.add(response)
            await asyncio.sleep(0)
        return assembly.assembled()

    async def _send(
        self, connection: Connection, *, transfer_id: int, piece: int
    ) -> PullMetadataResponse:
        request = PullMetadataRequest(
            broker_id=self._broker_id,
            controller_epoch=self.position.controller_epoch,
            version=self.position.version,
            max_wait_ms=int(ASK_WAIT_S * 1000),
            transfer_id=transfer_id,
            piece=piece,
        )
        timeout_s = ASK_WAIT_S + ANSWER_GRACE_S
        response: PullMetadataResponse = await connection.send(request, timeout_s=timeout_s)
        if response.error_code == ErrorCode.SNAPSHOT_NOT_FOUND:
            raise BrokenTransfer("the controller has forgotten the rest of its answer")
        if response.error_code != ErrorCode.NONE:
            if response.controller_endpoints and not self._is_sure():
                endpoints = endpoints_of(response.controller_endpoints)
                self._pointed_to(BrokerId(response.controller_id), endpoints)
            raise Refused(f"the controller answered with error {response.error_code}")
        return response

    # -- taking over -----------------------------------------------------------------------

    def _check(self, news: Assembled) -> None:
        if news.position < self.position:
            raise Refused(f"{news.position} is older than {self.position}")
        if news.image is self.image and news.position != self.position:
            raise BrokenTransfer("nothing is new, and yet the position is another one")

    async def _take(self, news: Assembled) -> None:
        """As a whole, also when another controller is to be asked meanwhile."""
        work = self._scheduler.run(self._apply_delta_steps(news), name="take over metadata")
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.gather(task, return_exceptions=True)
            raise

    def _apply_delta_steps(self, news: Assembled) -> StepGenerator[None]:
        before = self.image
        change = difference(before, news.image)
        failure = yield from self._subscribers.prepare_steps(change)
        invariant(self.image is before, "two images are taken over at once")
        self.image, self.position = news.image, news.position
        second = yield from self._subscribers.notify_steps(change)
        self._taken = news.image
        self._moved.set()
        self._moved = asyncio.Event()
        if failure is not None or second is not None:
            # The change stands: it is so in the cluster, whatever somebody here makes of it.
            log.error("metadata change was not applied by every listener", error=failure or second)
