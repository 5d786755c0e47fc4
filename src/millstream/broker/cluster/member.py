"""A running member of a cluster: registration, controller candidacy, metadata, leaderships.

This object is notified of a lost session before any other: it closes every leadership before
anything else happens (I-18), and nothing is led again before the metadata shows the broker's new
epoch (I-17).
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from millstream.broker.cluster.authentication import AcceptedHere, Authenticator, Prover
from millstream.broker.cluster.broker_secrets import BrokerSecrets
from millstream.broker.cluster.controller_calls import ControllerCalls, ControllerSearch, GivenUp
from millstream.broker.cluster.forwarding import Route
from millstream.broker.cluster.isr_sender import IsrSender
from millstream.broker.cluster.settings import (
    ClusterSettings,
    PolicyMaker,
    addresses_for_brokers,
    listener_for_brokers,
)
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
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.replication.partitions import Partitions
from millstream.rpc.connections import Address, Connections
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator
from millstream.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse

log = get_logger("millstream.broker.cluster")

HAND_OVER_S: Final = 15.0
"""For a controlled shutdown; remaining leaderships move when the session ends."""
HAND_OVER_POLL_INTERVAL_S: Final = 0.1
CLOSE_S: Final = 20.0
"""For the session to close, which has a time limit of its own; it expires in any case."""
FORWARD: Final = "forward"
SHUTDOWN: Final = "shutdown"


class MemberFault(OperatingError):
    """An internal error ended the membership."""


@dataclass(slots=True, kw_only=True)
class MemberDependencies:
    """What it needs from the broker."""

    broker_id: BrokerId
    configs: BrokerConfigs
    settings: ClusterSettings
    coordination: Coordination
    connections: Connections
    clock: Clock
    client_log: ClientLog
    randomness: Randomness
    scheduler: CooperativeScheduler
    spawn: Spawn
    partitions: Callable[[], Partitions]
    """Called late: they need this object themselves."""


class ClusterMember:
    """Constructed, `begin`, `ready`; later `hand_over` and `close`. Runs on the loop's thread."""

    def __init__(self, dependencies: MemberDependencies) -> None:
        self._dependencies = dependencies
        self.coordination = dependencies.coordination
        self._settings = settings = dependencies.settings
        self._listener = ""
        self.tally = Tally()
        """Over all terms of this broker as the controller."""
        self._policy = PolicyMaker(dependencies.configs)
        self.candidate: Candidate[ActiveController] = Candidate(
            dependencies.broker_id,
            make_active=self._make_active,
            clock=dependencies.clock,
            randomness=dependencies.randomness,
            on_change=self._controller_changed,
        )
        self._incarnation: Registered | None = None
        """The newest, also after it ended: others may still know it."""
        self._accepted = AcceptedHere(frozenset(), None)
        self._secrets = BrokerSecrets(dependencies.broker_id, self._session, dependencies.spawn)
        self.authenticator, self.prover = self._make_proofs()
        self._search = ControllerSearch(dependencies.broker_id)
        self.metadata_follower = MetadataFollower(
            dependencies.broker_id,
            locate=self._locate_metadata_source,
            is_certain=self.may_propose,
            on_controller_hint=self._search.use_hint,
            connections=dependencies.connections,
            scheduler=dependencies.scheduler,
            randomness=dependencies.randomness,
        )
        self._calls = ControllerCalls(
            self._located,
            dependencies.connections,
            dependencies.randomness,
            timeout_s=settings.request_timeout_s,
        )
        self.calls = self._calls
        self._source = MetadataSource(self._open_controller, self._known_controller)
        self.isr = IsrSender(
            self._calls,
            broker_id=dependencies.broker_id,
            broker_epoch=lambda: self._current.epoch if self._current else None,
            spawn=dependencies.spawn,
        )
        self.producer_id_blocks = ProducerIdBlocks(dependencies.broker_id, self._session)
        self._lifecycle: BrokerLifecycle | None = None
        self._registration_task: asyncio.Task[None] | None = None
        self._metadata_task: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self._applied_epoch = NO_BROKER_EPOCH
        """The epoch whose first image is applied: its partitions are led."""
        self._applying_epoch = NO_BROKER_EPOCH
        """The epoch of this broker in the image that was applied last, or is being applied."""
        self._applied = asyncio.Event()
        self.is_applying = False
        self._is_between = False
        self.last_epoch = NO_BROKER_EPOCH
        """Of the newest registration; together with a clean stop, proof that nothing was lost."""
        self.seen_epoch = NO_BROKER_EPOCH
        """The newest one that an image had."""
        self._found_logs = 0
        """At the start of this broker."""
        self._is_closing = False
        self.cluster_id = ""
        self.failure: OperatingError | None = None
        self.failed = asyncio.Event()
        """Set when the broker cannot remain a member; `failure` has the reason."""

    def _make_proofs(self) -> tuple[Authenticator, Prover]:
        """How others prove themselves to this broker, and it to them."""
        dependencies = self._dependencies
        authenticator = Authenticator(
            self._secrets,
            lambda: self._accepted,
            lambda: self.cluster_id,
            dependencies.randomness,
        )
        prover = Prover(
            dependencies.broker_id,
            lambda: self._incarnation,
            dependencies.randomness,
            dependencies.client_log,
            timeout_s=self._settings.connect_timeout_s,
        )
        return authenticator, prover

    # -- for handlers ----------------------------------------------------------------------

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

    async def pull_metadata(self, request: PullMetadataRequest) -> PullMetadataResponse:
        return await self._source.answer(request)

    @property
    def image(self) -> ClusterImage:
        return self.metadata_follower.image

    def route(self) -> Route:
        """Where requests for the controller are sent."""
        located = self._located()
        if isinstance(located, Address):
            return Route(is_local=False, address=located._replace(purpose=FORWARD))
        return Route(is_local=located is not None, address=None)

    def address_of(self, broker_id: BrokerId) -> Address | None:
        """On the inter-broker listener, by the current metadata."""
        broker = self.image.brokers.get(broker_id)
        endpoint = broker.live_endpoint(self._listener) if broker is not None else None
        return Address(endpoint.host, endpoint.port, "fetch") if endpoint is not None else None

    def epoch_of(self, broker_id: BrokerId) -> BrokerEpoch | None:
        """Of a broker that is alive, by the current metadata."""
        broker = self.image.brokers.get(broker_id)
        return broker.epoch if broker is not None and not broker.is_fenced else None

    def may_propose(self) -> bool:
        """Not while the session is suspended: nothing is changed then (I-18)."""
        session = self._session()
        return session is not None and session.state is SessionState.CONNECTED

    # -- lifecycle -------------------------------------------------------------------------

    def loaded(self, *, last_epoch: BrokerEpoch, found_logs: int) -> None:
        """The logs are open; `last_epoch` is from the clean stop before this start."""
        self.last_epoch, self._found_logs = last_epoch, found_logs

    def begin(self, registration: Registration, ids: ClusterIds, *, listener: str) -> None:
        """Become a member, and stay one until `close`."""
        dependencies = self._dependencies
        self._listener = listener
        only = listener_for_brokers(dependencies.configs)
        self._accepted = AcceptedHere(addresses_for_brokers(registration.endpoints, only), only)
        self.last_epoch = registration.previous_epoch
        self._lifecycle = BrokerLifecycle(
            dependencies.coordination,
            registration,
            clock=dependencies.clock,
            broker=self,
            cluster_ids=ids,
            session_timeout_ms=self._settings.session_timeout_ms,
            randomness=dependencies.randomness,
            while_registered=self._while_registered,
        )
        loop = asyncio.get_running_loop()
        registering = self._run_or_give_up(self._lifecycle.run())
        self._registration_task = loop.create_task(registering, name="be a member")
        follow_metadata = self._run_or_give_up(self.metadata_follower.run())
        self._metadata_task = loop.create_task(follow_metadata, name="follow the cluster")

    async def wait_until_registered(self) -> None:
        """Wait for the first registration; raises what prevented it, CannotConnect on a timeout."""
        # An older registration with this id may have to expire first.
        limit_s = self._settings.connection_timeout_s + 2 * self._settings.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await self._wait_for(self._registered)
        except TimeoutError:
            service = f"the coordination service {self._settings.hosts}"
            has_connected = self._lifecycle is not None and self._lifecycle.has_connected
            what = "did not accept the registration" if has_connected else "could not be reached"
            raise CannotConnect(f"{service} {what} within {limit_s:.0f} s") from None

    async def ready(self) -> None:
        """Wait until the metadata has this broker and its leaderships have begun.

        Raises what ended the membership.
        """
        await self._wait_for(self._applied)

    async def _wait_for(self, event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(one.wait()) for one in (event, self.failed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.failure is not None:
            raise self.failure

    async def _run_or_give_up(self, work: Coroutine[Any, Any, None]) -> None:
        """An error in the work ends the membership."""
        try:
            await work
        except OperatingError as error:
            self.give_up(error)
        except Exception as error:  # noqa: BLE001 - reported when the broker is stopped
            end_if_fatal(error)
            log.error("cluster membership failed", error=error)
            self.give_up(MemberFault(f"{type(error).__name__}: {error}"))

    def give_up(self, reason: OperatingError) -> None:
        """This broker cannot remain a member, and must be stopped."""
        if self.failure is not None:
            return  # later failures are consequences of the first
        self.failure = reason
        log.error("broker cannot be a member of the cluster; stopping", reason=str(reason))
        self.failed.set()

    async def _while_registered(self, incarnation: Registered) -> None:
        await self.candidate.run(incarnation)

    async def hand_over(self) -> None:
        """Controlled shutdown: leaderships and ISR memberships move while it still serves."""
        epoch = self.broker_epoch
        if not self._settings.hands_over or epoch == NO_BROKER_EPOCH or not self._applied.is_set():
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                is_done = await self._is_handed_over(epoch)
                while not is_done:
                    await asyncio.sleep(HAND_OVER_POLL_INTERVAL_S)
                    is_done = await self._is_handed_over(epoch)
        except TimeoutError:
            log.warning(
                "controlled shutdown timed out; some partitions are still led", seconds=HAND_OVER_S
            )
        except (GivenUp, OperatingError) as error:
            log.warning("controlled shutdown failed", reason=str(error) or "the session is lost")

    async def _is_handed_over(self, epoch: BrokerEpoch) -> bool:
        async def call_local(controller: ClusterController) -> bool:
            return await controller.shut_down(self._dependencies.broker_id, epoch)

        async def call_remote(send: Callable[[Any], Any]) -> bool:
            request = BrokerHeartbeatRequest(
                broker_id=self._dependencies.broker_id, broker_epoch=epoch, want_shut_down=True
            )
            return bool((await send(request)).should_shut_down)

        return await self._calls.call(
            call_local, call_remote, purpose=SHUTDOWN, is_wanted=lambda: self.broker_epoch == epoch
        )

    async def stop_following(self) -> None:
        """Ignore metadata changes from here on."""
        if self._metadata_task is not None:
            self._metadata_task.cancel()
            await asyncio.wait([self._metadata_task])

    async def close(self) -> None:
        """End the session; all leaderships have been resigned before."""
        self._is_closing = True
        await self.stop_following()
        if self._lifecycle is None or self._registration_task is None:
            return
        self._lifecycle.close()
        await asyncio.wait([self._registration_task], timeout=CLOSE_S)
        self._registration_task.cancel()
        await asyncio.wait([self._registration_task])

    # -- events ----------------------------------------------------------------------------

    def registered(self, incarnation: Registered) -> None:
        self.last_epoch = incarnation.epoch
        self._incarnation = incarnation
        self.cluster_id = incarnation.cluster_id
        self._registered.set()
        self._controller_changed()

    def has_all_data(self) -> bool:
        return not self._dependencies.partitions().has_lost

    def session_lost(self, epoch: BrokerEpoch) -> None:
        """Resign all leaderships, before anything else is notified (I-18)."""
        self._applied_epoch = NO_BROKER_EPOCH
        self._dependencies.partitions().close_all_leaderships()
        if not self._is_closing:
            log.warning("no longer registered; resigned all leaderships", epoch=epoch)

    def reachability_changed(self) -> None:
        """The connection state changed: the controller is located in another way now."""
        self._controller_changed()

    def apply_change_steps(self, change: ImageChange) -> StepGenerator[None]:
        """Lead and follow partitions as in the image, if it has this incarnation (I-17)."""
        self.is_applying = True
        try:
            while self._is_between:
                yield None
            yield from self._apply_steps(change)
        finally:
            self.is_applying = False

    @property
    def is_changing(self) -> bool:
        """Whether others are creating or deleting logs right now."""
        return self.is_applying or self._is_between

    def between_changes_steps(self, steps: StepGenerator[None]) -> StepGenerator[None]:
        """Steps that no change may interrupt; not to be called while `is_changing`."""
        self._is_between = True
        try:
            yield from steps
        finally:
            self._is_between = False

    def may_lead(self) -> bool:
        """Whether the change being applied was made for this incarnation, and that is still alive.

        Steps continue when the session is lost between two of them: a log that is half created must
        be completed. Only leading is not allowed then.
        """
        return self._applying_epoch != NO_BROKER_EPOCH and self._applying_epoch == self.broker_epoch

    def _apply_steps(self, change: ImageChange) -> StepGenerator[None]:
        partitions, image, epoch = self._dependencies.partitions(), self.image, self.broker_epoch
        self._search.add_brokers(image.brokers)
        self._secrets.note_brokers(image.brokers)
        if not self._is_shown(image, epoch):
            self._not_shown(epoch)
            return
        self._applying_epoch = epoch
        if self._applied_epoch == epoch:
            yield from partitions.prepare_steps(change)
            yield from partitions.follow_up_steps(change)
            return
        if not self._applied.is_set():
            yield from self._delete_strays_steps(image)
        yield from partitions.apply_image_steps(image)
        self._note_seen(epoch)
        if self.broker_epoch == epoch:
            self._applied_epoch = epoch
            self._applied.set()

    def _not_shown(self, epoch: BrokerEpoch) -> None:
        """The image lacks this epoch; if an earlier one had it, the registration has ended."""
        was_shown = epoch != NO_BROKER_EPOCH and self._applied_epoch == epoch
        self._applied_epoch = NO_BROKER_EPOCH
        if was_shown:
            self._dependencies.partitions().close_all_leaderships()
            log.warning("fenced by controller; resigned all leaderships", epoch=epoch)

    def _note_seen(self, epoch: BrokerEpoch) -> None:
        """An image has the epoch, so a controller has recorded it."""
        self.seen_epoch = epoch
        if self._lifecycle is not None:
            self._lifecycle.note_seen(epoch)

    def _is_shown(self, image: ClusterImage, epoch: BrokerEpoch) -> bool:
        mine = image.brokers.get(self._dependencies.broker_id)
        return epoch != NO_BROKER_EPOCH and mine is not None and mine.epoch == epoch

    def _delete_strays_steps(self, image: ClusterImage) -> StepGenerator[None]:
        """Delete logs of topics that were deleted or moved away while this broker was down."""
        if not image.topics:
            # Possibly the coordination service lost its data: these may be the last copies.
            if self._found_logs:
                log.warning("cluster metadata has no topics; local logs are kept")
            return
        strays = yield from self._dependencies.partitions().delete_strays_steps(image)
        for one in strays:
            log.info("deleted stray log: partition has no replica here", partition=str(one))

    # -- internals -------------------------------------------------------------------------

    @property
    def _current(self) -> Registered | None:
        return self._lifecycle.current if self._lifecycle is not None else None

    def _session(self) -> Session | None:
        current = self._current
        return current.session if current is not None else None

    def _located(self) -> Located | None:
        return locate(self.candidate, self._listener)

    def _locate_metadata_source(self) -> Located | None:
        """The controller, from which metadata is pulled.

        While the coordination service is unreachable, the controller is searched for. So a broker
        that is cut off from the service alone learns that others lead its partitions, and can
        redirect its clients (I-18 lets it lead until then).
        """
        if self.may_propose() or not self.metadata_follower.is_known:
            return self._located()
        endpoint = self._search.next(self._listener)
        if endpoint is None:
            return self._located()
        return Address(endpoint.host, endpoint.port, PURPOSE)

    def _known_controller(self) -> Registration | None:
        """Another broker; None while the coordination service may have a later one."""
        return self.candidate.controller if self.may_propose() else None

    def _open_controller(self) -> ActiveController | None:
        active = self.candidate.active
        return active if active is not None and active.is_open else None

    def _controller_changed(self) -> None:
        controller = self.candidate.controller
        if controller is not None:
            self._search.add_broker(controller.broker_id, controller.endpoints)
        self.metadata_follower.controller_changed()

    def _make_active(self, incarnation: Registered, elected: Elected) -> ActiveController:
        dependencies, settings = self._dependencies, self._settings
        return ActiveController(
            incarnation,
            elected,
            ControllerSettings(
                make_policy=self._policy,
                check_configs=dependencies.configs.check_topic_configs,
                randomness=dependencies.randomness,
                client_log=dependencies.client_log,
                balance=Balance(
                    is_enabled=settings.rebalances, interval_s=settings.rebalance_interval_s
                ),
            ),
            self.tally,
            dependencies.broker_id,
        )
