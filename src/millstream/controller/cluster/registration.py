"""A broker's registration in the cluster: its session, its node, its broker epoch.

The registration is an ephemeral node; its czxid is the broker's epoch, larger with every
registration (I-17). When the session is lost everything the broker led is somebody else's: that is
told at once, before anything else happens (I-18). Then the broker opens a new session and registers
again, saying which epoch it had, which is the proof that nothing on its disk was lost between.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import CLUSTER_ID, Registration
from millstream.controller.errors import InconsistentClusterId
from millstream.controller.identity import DIRECTORIES_FILE, EPOCH_FILE
from millstream.coordination.errors import (
    CannotConnect,
    ConnectionLost,
    MultiFailed,
    MultiUnproved,
    NodeExists,
    NoNode,
    SessionLost,
)
from millstream.coordination.port import (
    Coordination,
    Create,
    Delete,
    NodeData,
    NodeKind,
    NodeStat,
    Session,
    SessionState,
)
from millstream.coordination.proofs import create_with_proof, multi_with_proof, read_surely
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.model.invariant import invariant
from millstream.observe.logs import get_logger
from millstream.rpc.backoff import Backoff
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.task_race import Wake, run_until_first, until
from millstream.storage.directories.clean_shutdown import CLEAN_SHUTDOWN_FILE

log = get_logger("millstream.controller.registration")

CONNECT_WAIT_S: Final = 10.0
"""For one attempt to open a session; attempts follow each other until `close`."""

CONNECT_BACKOFF: Final = Backoff(initial_s=0.1, max_s=2.0)

EARLIER_EPOCHS_MAX: Final = 50
"""Sessions that a broker may lose between two looks of a controller without losing its proof."""

EXPIRY_SHARE: Final = 1.5
"""Of the session timeout: how long a dead session's node may stay. A service rounds expiry up to
its next tick, and a timeout is at least two ticks."""


class BrokerIdTaken(OperatingError):
    """Another broker, with other data, is registered with this id, and is alive."""

    def __init__(self, broker_id: BrokerId, *, path: str) -> None:
        self.broker_id = broker_id
        super().__init__(
            f"another broker is registered with id {broker_id} ({path}) and stays so: every broker"
            " of a cluster needs an id of its own"
        )


class CoordinationIsOlder(OperatingError):
    """The coordination service does not know what it knew when this broker was last a member."""

    def __init__(self, *, had: BrokerEpoch, has: BrokerEpoch) -> None:
        self.had, self.has = had, has
        super().__init__(
            f"the coordination service knows less than it did: this broker had epoch {had} before,"
            f" there it is {has} now, so its data was lost or restored from an older backup, and"
            " logs of topics that were made since would be deleted as unknown; restore newer data,"
            f" or, to go on with what it knows, remove {EPOCH_FILE} and {CLEAN_SHUTDOWN_FILE} from"
            " every log directory of every broker"
        )


class LogsAreMissing(OperatingError):
    """Log directories are gone, and what the others say of them was true before they were."""

    def __init__(self, *, known: BrokerEpoch, seen: BrokerEpoch) -> None:
        super().__init__(
            f"a log directory is missing, and those that are there were last used in epoch {known}:"
            f" the broker went on without them, up to epoch {seen}, and logs that it made then may"
            " be in the missing one; bring it back, or, to give up what it held, remove"
            f" {DIRECTORIES_FILE} from the others and start again"
        )


class Registered(NamedTuple):
    """One incarnation of the broker, as long as its session lives."""

    session: Session
    epoch: BrokerEpoch
    cluster_id: str


class RegisteredBroker(Protocol):
    """Whose registration it is; called on the loop, never waited for."""

    def registered(self, incarnation: Registered) -> None: ...

    def session_lost(self, epoch: BrokerEpoch) -> None:
        """Drop every leadership now (I-18). Called once for each incarnation that ended."""

    def touch_changed(self) -> None:
        """The coordination service is out of reach, or in reach again."""

    def is_whole(self) -> bool:
        """Whether nothing on this broker's disks has failed since it was started: else what it had
        is not all still there, and it proves nothing.
        """


class ClusterIds(NamedTuple):
    """What is known of the cluster before anybody was asked."""

    known: str | None
    """What the broker's own directories say."""
    new: str
    """For a cluster that has none yet."""
    seen_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """Of this broker, the newest one that a controller has written down as seen."""
    complete_since: BrokerEpoch | None = None
    """Where log directories are gone: since this epoch, by the others' word, nothing is missing."""


class BrokerLifecycle:
    """Keeps one broker registered, as Kafka's BrokerLifecycleManager does.

    Made, then `run` in a task until `close`; all on the loop's thread.
    """

    def __init__(
        self,
        coordination: Coordination,
        registration: Registration,
        *,
        clock: Clock,
        broker: RegisteredBroker,
        cluster_ids: ClusterIds,
        session_timeout_ms: int,
        randomness: Randomness,
        while_registered: Callable[[Registered], Awaitable[None]] | None = None,
    ) -> None:
        """`while_registered` runs beside every registration; it is cancelled when that ends.

        `registration` needs a directory id, whose directory this process has locked, and the
        previous epoch if there is proof of a clean shutdown.
        """
        self._coordination = coordination
        self._registration = registration
        self._clock = clock
        self._broker = broker
        self._cluster_ids = cluster_ids
        self._timeout_ms = session_timeout_ms
        self._randomness = randomness
        self._while_registered = while_registered
        self._closing = asyncio.Event()
        self.has_connected = False
        """Whether the service has ever been reached."""
        self.current: Registered | None = None
        """None while this broker is no member."""

    @property
    def path(self) -> str:
        return nodes.broker_path(self._registration.broker_id)

    async def run(self) -> None:
        """Be a member until `close`; raises what keeps this broker out.

        BrokerIdTaken, InconsistentClusterId, CoordinationIsOlder.
        """
        await until(self._closing, self._be_member())

    def close(self) -> None:
        """`run` ends the session and returns; whatever was led must be given up before."""
        self._closing.set()

    def note_seen(self, epoch: BrokerEpoch) -> None:
        """A controller has written this epoch of ours down; less is never known from here on."""
        seen = max(epoch, self._cluster_ids.seen_epoch)
        self._cluster_ids = self._cluster_ids._replace(seen_epoch=seen)
        self._remember(self._registration.earlier_epochs)

    def _remember(self, epochs: Iterable[BrokerEpoch]) -> None:
        """Of those that were, the ones that may be the last a controller has written down."""
        seen = self._cluster_ids.seen_epoch
        kept = [one for one in epochs if one != NO_BROKER_EPOCH and one >= seen]
        self._registration = self._registration._replace(
            earlier_epochs=tuple(kept[-EARLIER_EPOCHS_MAX:])
        )

    async def _be_member(self) -> None:
        failures = 0
        while True:
            try:
                session = await self._coordination.connect(
                    timeout_ms=self._timeout_ms, wait_s=CONNECT_WAIT_S
                )
            except CannotConnect as error:
                failures += 1
                log.warning("cannot connect to the coordination service", error=str(error))
                await asyncio.sleep(CONNECT_BACKOFF.delay_s(failures, self._randomness))
                continue
            failures, self.has_connected = 0, True
            try:
                await self._live(session)
            except SessionLost:
                log.warning("session expired", session=session.session_id)
            finally:
                self._lose()
                await asyncio.shield(session.close())

    async def _live(self, session: Session) -> None:
        """One session, from its beginning to its end."""
        ended = asyncio.Event()

        def on_state(state: SessionState) -> None:
            if state is SessionState.LOST:
                self._lose()
                ended.set()
            elif state is SessionState.SUSPENDED:
                log.warning("coordination service unreachable")
            else:
                log.info("coordination service reachable again")
            self._broker.touch_changed()

        session.add_listener(on_state)
        await make_base_nodes(session)
        cluster_id = await agree_on_cluster_id(session, self._cluster_ids)
        self._cluster_ids = self._cluster_ids._replace(known=cluster_id)
        await check_memory(session, self._registration.broker_id, self._cluster_ids)
        stat = await register(session, self._told(), now_ms=self._clock.wall_ms())
        epoch, previous = BrokerEpoch(stat.czxid), self._registration.previous_epoch
        if epoch <= previous:
            raise CoordinationIsOlder(had=previous, has=epoch)
        if session.state is SessionState.LOST:
            return
        self._remember((*self._registration.earlier_epochs, previous))
        self._registration = self._registration._replace(previous_epoch=epoch)
        self._cluster_ids = self._cluster_ids._replace(complete_since=None)
        self.current = incarnation = Registered(session, epoch, cluster_id)
        log.info("broker registered", broker=self._registration.broker_id, epoch=epoch)
        self._broker.registered(incarnation)
        await until(ended, self._stay(incarnation))

    def _told(self) -> Registration:
        if self._broker.is_whole():
            return self._registration
        return self._registration._replace(previous_epoch=NO_BROKER_EPOCH, earlier_epochs=())

    async def _stay(self, incarnation: Registered) -> None:
        await run_until_first(self._guard(incarnation), self._work_beside(incarnation))

    async def _work_beside(self, incarnation: Registered) -> None:
        if self._while_registered is not None:
            await self._while_registered(incarnation)
        await asyncio.Event().wait()  # its end is not the registration's

    async def _guard(self, incarnation: Registered) -> None:
        """Returns when the registration is gone, though the session may live: somebody deleted it.

        To everybody else that is a broker that left; so it is one, and comes anew.
        """
        session = incarnation.session
        with suppress(SessionLost):
            while True:
                changed = Wake()
                try:
                    stat = await session.exists(self.path, watch=changed)
                except ConnectionLost:
                    await session.connected()
                    continue
                if stat is None or BrokerEpoch(stat.czxid) != incarnation.epoch:
                    log.warning("registration was deleted", path=self.path)
                    self._lose()  # before anything is waited for
                    return
                await changed.wait()
                await session.connected()

    def _lose(self) -> None:
        incarnation, self.current = self.current, None
        if incarnation is not None:
            self._broker.session_lost(incarnation.epoch)


# -- the nodes ---------------------------------------------------------------------------------


async def make_base_nodes(session: Session) -> None:
    """The nodes that all others hang on, where they are not there yet."""
    missing = [one for one in nodes.PERSISTENT if await read_surely(session, one) is None]
    if len(missing) > 1:
        # Together, for one sync instead of many; unless somebody else makes them, too.
        with suppress(MultiFailed, MultiUnproved):
            await multi_with_proof(session, [Create(path=one) for one in missing])
            return
    for path in missing:
        with suppress(NodeExists):
            await create_with_proof(session, path)


async def agree_on_cluster_id(session: Session, ids: ClusterIds) -> str:
    """The cluster's id; raises InconsistentClusterId when our directories say another one."""
    found = await read_surely(session, CLUSTER_ID)
    if found is None:
        with suppress(NodeExists):
            await create_with_proof(
                session, CLUSTER_ID, nodes.encode_cluster_id(ids.known or ids.new)
            )
        found = await read_surely(session, CLUSTER_ID)
        invariant(found is not None, "the cluster's id is gone again", path=CLUSTER_ID)
    theirs = nodes.decode_cluster_id(found.data if found is not None else b"")
    if ids.known is not None and theirs != ids.known:
        raise InconsistentClusterId(path=CLUSTER_ID, ours=ids.known, theirs=theirs)
    return theirs


async def check_memory(session: Session, broker_id: BrokerId, ids: ClusterIds) -> None:
    """Raise CoordinationIsOlder where an epoch was seen that nobody knows of any more.

    Epochs alone do not tell: an ensemble that was restored numbers its changes from higher on.
    Nothing at all is a broker that was forgotten on purpose, or a service that is empty, whose
    numbers begin anew. Raise LogsAreMissing where a later epoch is known than the directories
    know of that say that nothing is missing.
    """
    path = nodes.known_broker_path(broker_id)
    found = await read_surely(session, path)
    if found is not None:
        known = nodes.decode_known_broker(broker_id, found.data)
        if known.epoch < ids.seen_epoch:
            raise CoordinationIsOlder(had=ids.seen_epoch, has=known.epoch)
        if ids.complete_since is not None and known.epoch > ids.complete_since:
            raise LogsAreMissing(known=ids.complete_since, seen=known.epoch)


async def register(session: Session, registration: Registration, *, now_ms: int) -> NodeStat:
    """Create the registration; raises BrokerIdTaken, SessionLost.

    A node of our own data directory is that of our predecessor, or of a session that we lost:
    the lock on the directory says that nobody else can be alive with it. It is replaced at once.
    Any other node is given the time in which a dead session expires.
    """
    path = nodes.broker_path(registration.broker_id)
    data = nodes.encode_registration(registration, timestamp_ms=now_ms)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + session.timeout_ms / 1000 * EXPIRY_SHARE
    while True:
        try:
            return (await create_with_proof(session, path, data, kind=NodeKind.EPHEMERAL)).stat
        except NodeExists:
            found = await read_surely(session, path)
        if found is None:
            continue
        if found.stat.owner == session.session_id:
            return found.stat
        if _is_same_directory(registration, found):
            await _replace(session, path, data, found)
        elif not await _is_gone(session, path, wait_s=until_s - loop.time()):
            raise BrokerIdTaken(registration.broker_id, path=path)


def _is_same_directory(registration: Registration, found: NodeData) -> bool:
    epoch = BrokerEpoch(found.stat.czxid)
    try:
        theirs = nodes.decode_registration(registration.broker_id, found.data, epoch=epoch)
    except DamagedNode:
        return False
    return theirs.directory_id is not None and theirs.directory_id == registration.directory_id


async def _replace(session: Session, path: str, data: bytes, found: NodeData) -> None:
    """Take the place of a dead one in one step, so that nobody else gets between."""
    log.info("replacing the registration of the previous process", path=path)
    try:
        await multi_with_proof(
            session,
            [
                Delete(path=path, version=found.stat.version),
                Create(path=path, data=data, kind=NodeKind.EPHEMERAL),
            ],
        )
    except (MultiFailed, MultiUnproved):
        return  # it is gone, or another one is there: look again


async def _is_gone(session: Session, path: str, *, wait_s: float) -> bool:
    """Wait that long for the node to go; however often it is replaced."""
    try:
        async with asyncio.timeout(max(0.0, wait_s)):
            while True:
                changed = Wake()
                try:
                    await session.get(path, watch=changed)
                except NoNode:
                    return True
                except ConnectionLost:
                    await session.connected()
                    continue
                await changed.wait()
                await session.connected()
    except TimeoutError:
        return False
