"""A member of a cluster while it runs: its registration, its candidacy, what it knows and leads.

Whatever is lost, it is this object that hears of it first: a session that is gone closes every
leadership before anything else happens (I-18), and nothing is led again before the metadata shows
the broker's new epoch (I-17).
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from millstream.broker.cluster.controller_calls import ControllerCalls, ControllerSearch, GivenUp
from millstream.broker.cluster.forwarding import Route
from millstream.broker.cluster.isr_sender import IsrSender
from millstream.broker.cluster.settings import ClusterSettings, PolicyMaker
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.requests.dispatch import Spawn
from millstream.controller.cluster.active import ActiveController, Balance, ControllerSettings
from millstream.controller.cluster.candidate import Candidate, Elected
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.metadata_follower import (
    PURPOSE,
    Located,
    MetadataFollower,
    locate,
)
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.port import ClusterController
from millstream.controller.cluster.producer_id_blocks import ProducerIdBlocks
from millstream.controller.cluster.pull_metadata import MetadataSource
from millstream.controller.cluster.registration import BrokerLifecycle, ClusterIds, Registered
from millstream.controller.cluster.tally import Tally
from millstream.controller.image import ClusterImage, ImageChange
from millstream.coordination.errors import CannotConnect
from millstream.coordination.port import Coordination, Session, SessionState
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.observe.logs import get_logger
from millstream.replication.partitions import Partitions
from millstream.rpc.connections import Address, Connections
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse

log = get_logger("millstream.broker.cluster")

HAND_OVER_S: Final = 15.0
"""For a controlled shutdown; whatever is left is somebody else's when the session ends."""
HAND_OVER_LOOK_S: Final = 0.1
CLOSE_S: Final = 20.0
"""For the session to end, which has a limit of its own; it expires by itself in any case."""
FORWARD: Final = "forward"
SHUTDOWN: Final = "shutdown"


class MemberFault(OperatingError):
    """An error of ours ended the membership."""


@dataclass(slots=True, kw_only=True)
class MemberParts:
    """What it needs of the broker."""

    broker_id: BrokerId
    configs: BrokerConfigs
    settings: ClusterSettings
    coordination: Coordination
    connections: Connections
    clock: Clock
    randomness: Randomness
    scheduler: CooperativeScheduler
    spawn: Spawn
    partitions: Callable[[], Partitions]
    """Which need this object themselves."""


class ClusterMember:
    """Made, `begin`, `ready`; later `hand_over` and `close`. All on the loop's thread."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self.coordination = parts.coordination
        self._settings = settings = parts.settings
        self._listener = ""
        self.tally = Tally()
        """Of all times that this broker was the controller."""
        self._policy = PolicyMaker(parts.configs)
        self.candidate: Candidate[ActiveController] = Candidate(
            parts.broker_id,
            make_active=self._make_active,
            clock=parts.clock,
            randomness=parts.randomness,
            on_change=self._controller_changed,
        )
        self._search = ControllerSearch(parts.broker_id)
        self.metadata_follower = MetadataFollower(
            parts.broker_id,
            locate=self._to_ask,
            is_sure=self.may_propose,
            pointed_to=self._search.pointed_to,
            connections=parts.connections,
            scheduler=parts.scheduler,
            randomness=parts.randomness,
        )
        self._calls = ControllerCalls(
            self._located,
            parts.connections,
            parts.randomness,
            timeout_s=settings.request_timeout_s,
        )
        self.calls = self._calls
        self._source = MetadataSource(self._open_controller, self._known_controller)
        self.isr = IsrSender(
            self._calls,
            broker_id=parts.broker_id,
            broker_epoch=lambda: self._current.epoch if self._current else None,
            spawn=parts.spawn,
        )
        self.producer_id_blocks = ProducerIdBlocks(parts.broker_id, self._session)
        self._lifecycle: BrokerLifecycle | None = None
        self._being_member: asyncio.Task[None] | None = None
        self._being_told: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self._taken_epoch = NO_BROKER_EPOCH
        """The epoch whose first image is taken over: its leaderships are led."""
        self._taking_epoch = NO_BROKER_EPOCH
        """The epoch that the image knew which was taken last, or is being taken."""
        self._taken = asyncio.Event()
        self.is_taking = False
        self._is_between = False
        self.last_epoch = NO_BROKER_EPOCH
        """Of the newest registration; proof, with a clean stop, that nothing was lost."""
        self.seen_epoch = NO_BROKER_EPOCH
        """The newest one that an image had."""
        self._found_logs = 0
        """When this broker was started."""
        self._is_closing = False
        self.cluster_id = ""
        self.failure: OperatingError | None = None
        self.failed = asyncio.Event()
        """Set when the broker cannot be a member any more: `failure` says why."""

    # -- what handlers ask -----------------------------------------------------------------

    @property
    def broker_epoch(self) -> BrokerEpoch:
        current = self._current
        return current.epoch if current is not None else NO_BROKER_EPOCH

    @property
    def is_active(self) -> bool:
        return self._open_controller() is not None

    def active(self) -> ClusterController:
        controller = self._open_controller()
        if controller is None:
            raise NotController
        return controller

    async def pulled(self, request: PullMetadataRequest) -> PullMetadataResponse:
        return await self._source.answer(request)

    @property
    def image(self) -> ClusterImage:
        return self.metadata_follower.image

    def route(self) -> Route:
        """The way of requests that are the controller's."""
        located = self._located()
        if isinstance(located, Address):
            return Route(is_here=False, address=located._replace(purpose=FORWARD))
        return Route(is_here=located is not None, address=None)

    def address_of(self, broker_id: BrokerId) -> Address | None:
        """On the listener between brokers, by the metadata of the moment."""
        broker = self.image.brokers.get(broker_id)
        endpoint = broker.live_endpoint(self._listener) if broker is not None else None
        return Address(endpoint.host, endpoint.port, "fetch") if endpoint is not None else None

    def epoch_of(self, broker_id: BrokerId) -> BrokerEpoch | None:
        """Of a broker that is alive, by the metadata."""
        broker = self.image.brokers.get(broker_id)
        return broker.epoch if broker is not None and not broker.is_fenced else None

    def may_propose(self) -> bool:
        """Not while the session is suspended: then nothing is changed (I-18)."""
        session = self._session()
        return session is not None and session.state is SessionState.CONNECTED

    # -- its life --------------------------------------------------------------------------

    def loaded(self, *, last_epoch: BrokerEpoch, found_logs: int) -> None:
        """The logs are open; `last_epoch` is what the clean stop before this start left."""
        self.last_epoch, self._found_logs = last_epoch, found_logs

    def begin(self, registration: Registration, ids: ClusterIds, *, listener: str) -> None:
        """Become a member, and stay one until `close`."""
        parts = self._parts
        self._listener = listener
        self.last_epoch = registration.previous_epoch
        self._lifecycle = BrokerLifecycle(
            parts.coordination,
            registration,
            clock=parts.clock,
            broker=self,
            cluster_ids=ids,
            session_timeout_ms=self._settings.session_timeout_ms,
            randomness=parts.randomness,
            while_registered=self._while_registered,
        )
        loop = asyncio.get_running_loop()
        registering = self._or_fail(self._lifecycle.run())
        self._being_member = loop.create_task(registering, name="be a member")
        follow_metadata = self._or_fail(self.metadata_follower.run())
        self._being_told = loop.create_task(follow_metadata, name="follow the cluster")

    async def registered_once(self) -> None:
        """The first registration; raises what kept it from coming, CannotConnect in the end."""
        # A registration of somebody else with this id may have to expire first.
        limit_s = self._settings.connection_timeout_s + 2 * self._settings.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await self._or_failed(self._registered)
        except TimeoutError:
            service = f"the coordination service {self._settings.hosts}"
            is_there = self._lifecycle is not None and self._lifecycle.has_connected
            what = "did not take the registration" if is_there else "could not be reached"
            raise CannotConnect(f"{service} {what} within {limit_s:.0f} s") from None

    async def ready(self) -> None:
        """The metadata shows this broker, and what it leads is led; raises what ended it."""
        await self._or_failed(self._taken)

    async def _or_failed(self, event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(one.wait()) for one in (event, self.failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.failure is not None:
            raise self.failure

    async def _or_fail(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever ends it before its time, this broker cannot go on."""
        try:
            await work
        except OperatingError as error:
            self.give_up(error)
        except Exception as error:  # noqa: BLE001 - told by whoever stops the broker
            log.error("cluster membership failed", error=error)
            self.give_up(MemberFault(f"{type(error).__name__}: {error}"))

    def give_up(self, reason: OperatingError) -> None:
        """This broker cannot be a member any more, and is to be stopped."""
        if self.failure is not None:
            return  # what comes after the first failure comes of it
        self.failure = reason
        log.error("broker cannot join the cluster", reason=str(reason))
        self.failed.set()

    async def _while_registered(self, incarnation: Registered) -> None:
        await self.candidate.run(incarnation)

    async def hand_over(self) -> None:
        """A controlled shutdown: leaderships and places in sync go to others, while it serves."""
        epoch = self.broker_epoch
        if not self._settings.hands_over or epoch == NO_BROKER_EPOCH or not self._taken.is_set():
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                is_done = await self._is_handed_over(epoch)
                while not is_done:
                    await asyncio.sleep(HAND_OVER_LOOK_S)
                    is_done = await self._is_handed_over(epoch)
        except TimeoutError:
            log.warning(
                "controlled shutdown timed out; some partitions are still led", seconds=HAND_OVER_S
            )
        except (GivenUp, OperatingError) as error:
            log.warning("controlled shutdown failed", reason=str(error) or "the session is lost")

    async def _is_handed_over(self, epoch: BrokerEpoch) -> bool:
        async def here(controller: ClusterController) -> bool:
            return await controller.shut_down(self._parts.broker_id, epoch)

        async def there(send: Callable[[Any], Any]) -> bool:
            request = BrokerHeartbeatRequest(
                broker_id=self._parts.broker_id, broker_epoch=epoch, want_shut_down=True
            )
            return bool((await send(request)).should_shut_down)

        return await self._calls.call(
            here, there, purpose=SHUTDOWN, is_wanted=lambda: self.broker_epoch == epoch
        )

    async def stop_following(self) -> None:
        """Whatever the cluster decides from here on is not for this broker any more."""
        if self._being_told is not None:
            self._being_told.cancel()
            await asyncio.wait([self._being_told])

    async def close(self) -> None:
        """End the session; whatever was led has been given up before."""
        self._is_closing = True
        await self.stop_following()
        if self._lifecycle is None or self._being_member is None:
            return
        self._lifecycle.close()
        await asyncio.wait([self._being_member], timeout=CLOSE_S)
        self._being_member.cancel()
        await asyncio.wait([self._being_member])

    # -- what happens to it ----------------------------------------------------------------

    def registered(self, incarnation: Registered) -> None:
        self.last_epoch = incarnation.epoch
        self.cluster_id = incarnation.cluster_id
        self._registered.set()
        self._controller_changed()

    def is_whole(self) -> bool:
        return not self._parts.partitions().has_lost

    def session_lost(self, epoch: BrokerEpoch) -> None:
        """Nothing is led from here on, before anybody else is told anything (I-18)."""
        self._taken_epoch = NO_BROKER_EPOCH
        self._parts.partitions().close_all_leaderships()
        if not self._is_closing:
            log.warning("session expired; resigned all leaderships", epoch=epoch)

    def touch_changed(self) -> None:
        """Who is the controller is known in another way from here on."""
        self._controller_changed()

    def apply_change_steps(self, change: ImageChange) -> StepGenerator[None]:
        """Lead and follow what the image says, if it knows this incarnation (I-17)."""
        self.is_taking = True
        try:
            while self._is_between:
                yield None
            yield from self._apply_steps(change)
        finally:
            self.is_taking = False

    def between_changes_steps(self, steps: StepGenerator[None]) -> StepGenerator[None]:
        """Steps that no change may come into; not while one is being taken."""
        self._is_between = True
        try:
            yield from steps
        finally:
            self._is_between = False

    def may_lead(self) -> bool:
        """Whether what is being taken was decided for this incarnation, which is still alive.

        Steps go on when the session is lost between two of them: a log that is half made must be
        made. Only leading is over then.
        """
        return self._taking_epoch != NO_BROKER_EPOCH and self._taking_epoch == self.broker_epoch

    def _apply_steps(self, change: ImageChange) -> StepGenerator[None]:
        partitions, image, epoch = self._parts.partitions(), self.image, self.broker_epoch
        self._search.met(image.brokers)
        if not self._is_shown(image, epoch):
            self._not_shown(epoch)
            return
        self._taking_epoch = epoch
        if self._taken_epoch == epoch:
            yield from partitions.prepare_steps(change)
            yield from partitions.follow_up_steps(change)
            return
        if not self._taken.is_set():
            yield from self._delete_strays_steps(image)
        yield from partitions.apply_image_steps(image)
        self._note_seen(epoch)
        if self.broker_epoch == epoch:
            self._taken_epoch = epoch
            self._taken.set()

    def _not_shown(self, epoch: BrokerEpoch) -> None:
        """One that an earlier image had is gone: the controller has seen the registration end."""
        was_shown = epoch != NO_BROKER_EPOCH and self._taken_epoch == epoch
        self._taken_epoch = NO_BROKER_EPOCH
        if was_shown:
            self._parts.partitions().close_all_leaderships()
            log.warning("fenced by controller; resigned all leaderships", epoch=epoch)

    def _note_seen(self, epoch: BrokerEpoch) -> None:
        """An image has it: so a controller has written it down before."""
        self.seen_epoch = epoch
        if self._lifecycle is not None:
            self._lifecycle.note_seen(epoch)

    def _is_shown(self, image: ClusterImage, epoch: BrokerEpoch) -> bool:
        mine = image.brokers.get(self._parts.broker_id)
        return epoch != NO_BROKER_EPOCH and mine is not None and mine.epoch == epoch

    def _delete_strays_steps(self, image: ClusterImage) -> StepGenerator[None]:
        """Logs of topics that were deleted, or moved away, while this broker was not there."""
        if not image.topics:
            # As likely a coordination service that lost everything: these may be the last copies.
            if self._found_logs:
                log.warning("cluster metadata has no topics; local logs are kept")
            return
        strays = yield from self._parts.partitions().delete_strays_steps(image)
        for one in strays:
            log.info("deleted stray log: partition has no replica here", partition=str(one))

    # -- inside ----------------------------------------------------------------------------

    @property
    def _current(self) -> Registered | None:
        return self._lifecycle.current if self._lifecycle is not None else None

    def _session(self) -> Session | None:
        current = self._current
        return current.session if current is not None else None

    def _located(self) -> Located | None:
        return locate(self.candidate, self._listener)

    def _to_ask(self) -> Located | None:
        """Who is asked for metadata: the controller.

        Without the coordination service nobody says who that is by now, and it is searched for. So
        a broker that only the service does not reach hears that others lead what it led, and tells
        its clients (I-18 lets it lead until then).
        """
        if self.may_propose() or not self.metadata_follower.is_known:
            return self._located()
        place = self._search.next(self._listener)
        if place is None:
            return self._located()
        return Address(place.host, place.port, PURPOSE)

    def _known_controller(self) -> Registration | None:
        """Another broker; None while the coordination service may know of a later one."""
        return self.candidate.controller if self.may_propose() else None

    def _open_controller(self) -> ActiveController | None:
        active = self.candidate.active
        return active if active is not None and active.is_open else None

    def _controller_changed(self) -> None:
        controller = self.candidate.controller
        if controller is not None:
            self._search.met_one(controller.broker_id, controller.endpoints)
        self.metadata_follower.controller_changed()

    def _make_active(self, incarnation: Registered, elected: Elected) -> ActiveController:
        parts, settings = self._parts, self._settings
        return ActiveController(
            incarnation,
            elected,
            ControllerSettings(
                make_policy=self._policy,
                check_configs=parts.configs.check_topic_configs,
                randomness=parts.randomness,
                balance=Balance(
                    is_enabled=settings.rebalances, interval_s=settings.rebalance_interval_s
                ),
            ),
            self.tally,
            parts.broker_id,
        )
