"""A broker's view of the cluster: polled from the controller and passed to subscribers.

Only one request is in flight at a time. The answer is a snapshot or a delta; either becomes the
next image as a whole. When the controller changes, a new request is sent at once. An image of an
older controller than the last one is refused: it is out of date.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from millstream.controller.cluster.active import ActiveController
from millstream.controller.cluster.candidate import Candidate
from millstream.controller.cluster.chunks import (
    AssembledImage,
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

LONG_POLL_S: Final = 5.0
"""How long the controller holds a request while nothing is new."""

RESPONSE_GRACE_S: Final = 10.0
"""How much longer a response may take before the connection is given up."""

POLL_BACKOFF: Final = Backoff(initial_s=0.02, max_s=0.5)

PURPOSE: Final = "metadata"

Located = ClusterController | Address
"""The controller: this broker's own, or another broker's address."""


def locate(candidate: Candidate[ActiveController], listener: str) -> Located | None:
    """The controller as the candidate knows it; None while there is none, or no address for it."""
    if candidate.active is not None:
        return candidate.active
    if candidate.controller is None:
        return None
    for one in candidate.controller.endpoints:
        if one.listener == listener:
            return Address(one.host, one.port, PURPOSE)
    return None


class Refused(OperatingError):
    """A rejected answer: from an older controller, or with an error code."""


class MetadataFollower:
    """Add subscribers, then `run` it in a task; all on the loop's thread."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        locate: Callable[[], Located | None],
        connections: Connections,
        scheduler: CooperativeScheduler,
        randomness: Randomness,
        is_certain: Callable[[], bool] = lambda: True,
        on_controller_hint: Callable[[BrokerId, Sequence[Endpoint]], None] = lambda *_: None,
        cluster_id: str = "",
    ) -> None:
        """`locate` finds the known controller; `is_certain`: whether it is certain that it is the
        one.

        If not, it is located again after each answer: a controller that does not know of its
        successor keeps answering that nothing is new. `on_controller_hint` gets the broker that a
        non-controller names as the controller.
        """
        self._is_certain = is_certain
        self._on_controller_hint = on_controller_hint
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
        self._applied = self.image
        """The last one that all subscribers have applied: what it says this broker leads is led."""

    @property
    def is_known(self) -> bool:
        """Whether there has been an answer yet."""
        return self.position != NO_POSITION

    def subscribe(self, callback: Subscriber, *, prepare: Subscriber | None = None) -> None:
        """Call it on the loop after each change; `prepare` before the change is visible in the
        image.
        """
        self._subscribers.add(callback, prepare=prepare)

    def controller_changed(self) -> None:
        """Another broker is the controller, or none is: drop the request to the last one."""
        self._moved_controller.set()

    async def wait_for(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Return once the condition holds and all subscribers have applied the image.

        A client that creates a topic and writes to it at once should find its leader. A timeout is
        up to the caller.
        """
        while not condition(self._applied):
            await self._moved.wait()

    # -- polling ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self._moved_controller = stop = asyncio.Event()
            located = self._locate()
            if located is None:
                await stop.wait()
                continue
            await until(stop, self._poll_repeatedly(located))

    async def _poll_repeatedly(self, located: Located) -> None:
        while True:
            try:
                assembled = await self._poll(located)
                self._check(assembled)
            except (RpcError, MalformedFrame, NotController, Refused, BrokenTransfer) as error:
                if isinstance(error, BrokenTransfer):
                    self.position = self.position._replace(version=-1)  # request a snapshot next
                self._failures += 1
                log.debug("fetching metadata from the controller failed", error=str(error))
                await asyncio.sleep(POLL_BACKOFF.delay_s(self._failures, self._randomness))
                return  # the controller may have moved
            self._failures = 0
            if assembled.position != self.position:
                await self._apply(assembled)
            if not self._is_certain():
                return

    async def _poll(self, located: Located) -> AssembledImage:
        if not isinstance(located, Address):
            delta = await located.changes_since(self.position, wait_s=LONG_POLL_S)
            return AssembledImage(delta.position, delta.image)
        connection = await self._connections.get(located)
        first = await self._send(connection, transfer_id=0, chunk=0)
        if first.chunk_count == 0:
            position = FeedPosition(first.controller_epoch, first.version)
            return AssembledImage(position, self.image)
        assembler = ChunkAssembler(self.image, first)
        assembler.add(first)
        while (chunk := assembler.next_chunk) is not None:
            response = await self._send(connection, transfer_id=first.transfer_id, chunk=chunk)
            assembler.add(response)
            await asyncio.sleep(0)
        return assembler.assemble()

    async def _send(
        self, connection: Connection, *, transfer_id: int, chunk: int
    ) -> PullMetadataResponse:
        request = PullMetadataRequest(
            broker_id=self._broker_id,
            controller_epoch=self.position.controller_epoch,
            version=self.position.version,
            max_wait_ms=int(LONG_POLL_S * 1000),
            transfer_id=transfer_id,
            chunk=chunk,
        )
        timeout_s = LONG_POLL_S + RESPONSE_GRACE_S
        response: PullMetadataResponse = await connection.send(request, timeout_s=timeout_s)
        if response.error_code == ErrorCode.SNAPSHOT_NOT_FOUND:
            raise BrokenTransfer("the controller no longer has the rest of its answer")
        if response.error_code != ErrorCode.NONE:
            if response.controller_endpoints and not self._is_certain():
                endpoints = endpoints_of(response.controller_endpoints)
                self._on_controller_hint(BrokerId(response.controller_id), endpoints)
            raise Refused(f"the controller answered with error {response.error_code}")
        return response

    # -- applying --------------------------------------------------------------------------

    def _check(self, assembled: AssembledImage) -> None:
        if assembled.position < self.position:
            raise Refused(f"{assembled.position} is older than {self.position}")
        if assembled.image is self.image and assembled.position != self.position:
            raise BrokenTransfer("an answer without changes has another position")

    async def _apply(self, assembled: AssembledImage) -> None:
        """Apply it as a whole, even if the controller changes meanwhile."""
        work = self._scheduler.run(self._apply_delta_steps(assembled), name="take over metadata")
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.gather(task, return_exceptions=True)
            raise

    def _apply_delta_steps(self, assembled: AssembledImage) -> StepGenerator[None]:
        before = self.image
        change = difference(before, assembled.image)
        failure = yield from self._subscribers.prepare_steps(change)
        invariant(self.image is before, "two images are taken over at once")
        self.image, self.position = assembled.image, assembled.position
        second = yield from self._subscribers.notify_steps(change)
        self._applied = assembled.image
        self._moved.set()
        self._moved = asyncio.Event()
        if failure is not None or second is not None:
            # The change stands: it is committed in the cluster, even if a subscriber failed.
            log.error(
                "metadata change was not applied by every subscriber", error=failure or second
            )
