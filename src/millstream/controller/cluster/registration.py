"""A broker's registration in the cluster: its session, its node, its broker epoch.

The registration is an ephemeral node; its czxid is the broker's epoch, larger with every
registration (I-17). With it goes a secret of this incarnation, by which the broker proves to others
that it is the one that is registered (`broker/cluster/authentication.py`). When the session is lost
other brokers may lead everything that this one led: it resigns at once, before anything else
happens (I-18). Then it opens a new session and registers again with the epoch it had, which is
evidence that nothing on its disk was lost in between.
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
    AuthenticationFailed,
    CannotConnect,
    ConnectionLost,
    MultiFailed,
    MultiUnproved,
    NodeExists,
    NoNode,
    NotAllowed,
    SessionLost,
)
from millstream.coordination.port import (
    Coordination,
    Create,
    Delete,
    NodeData,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    SessionState,
)
from millstream.coordination.proofs import create_with_proof, multi_with_proof, read_latest
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.model.invariant import invariant
from millstream.observe.logs import Secret, get_logger
from millstream.rpc.backoff import Backoff
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.task_race import Wake, run_until_first, until
from millstream.storage.directories.clean_shutdown import CLEAN_SHUTDOWN_FILE

log = get_logger("millstream.controller.registration")

CONNECT_WAIT_S: Final = 10.0
"""The limit for one attempt to open a session; attempts are repeated until `close`."""

CONNECT_BACKOFF: Final = Backoff(initial_s=0.1, max_s=2.0)

EARLIER_EPOCHS_MAX: Final = 50
"""Sessions that a broker may lose between two reads of a controller before its return is taken for
an unclean restart.
"""

EXPIRY_SHARE: Final = 1.5
"""How long a dead session's node may stay, in session timeouts: the service rounds expiry up to its
next tick, and a timeout is at least two ticks."""


SECRET_BYTES: Final = 32
"""As many as HMAC-SHA256 uses."""

NO_SECRET: Final = Secret("")


class BrokerIdTaken(OperatingError):
    """Another live broker, with other data, is registered with this id."""

    def __init__(self, broker_id: BrokerId, *, path: str) -> None:
        self.broker_id = broker_id
        super().__init__(
            f"another broker is registered with id {broker_id} ({path}) and stays so: every broker"
            " of a cluster needs its own id"
        )


class CoordinationIsOlder(OperatingError):
    """The coordination service has older data than when this broker was last registered."""

    def __init__(self, *, had: BrokerEpoch, has: BrokerEpoch) -> None:
        self.had, self.has = had, has
        super().__init__(
            f"the coordination service has lost data: this broker had epoch {had} before, there it"
            f" is {has} now, so its data was deleted or restored from an older backup, and logs of"
            " topics created since would be deleted as unknown; restore newer data,"
            f" or, to continue with what it has, remove {EPOCH_FILE} and {CLEAN_SHUTDOWN_FILE} from"
            " every log directory of every broker"
        )


class LogsAreMissing(OperatingError):
    """Log directories are missing, and the record of them in the others is out of date."""

    def __init__(self, *, known: BrokerEpoch, seen: BrokerEpoch) -> None:
        super().__init__(
            f"a log directory is missing, and those that are there were last used in epoch {known}:"
            f" the broker ran without them, up to epoch {seen}, and logs that it created then may"
            " be in the missing one; bring it back, or, to give up what it held, remove"
            f" {DIRECTORIES_FILE} from the others and start again"
        )


class AccessDenied(OperatingError):
    """The coordination service serves only those who have the cluster's secret."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(
            f"the coordination service refuses this broker ({reason}): zookeeper.secret.file must"
            " name a file with the cluster's secret, which is cluster.secret in the keeper's data"
            " directory"
        )


class Registered(NamedTuple):
    """One incarnation of the broker, valid as long as its session."""

    session: Session
    epoch: BrokerEpoch
    cluster_id: str
    secret: Secret = NO_SECRET
    """Beside the registration; it is known to this broker and to those that can read the nodes."""


class RegisteredBroker(Protocol):
    """The broker that is registered; called on the loop, never awaited."""

    def registered(self, incarnation: Registered) -> None: ...

    def session_lost(self, epoch: BrokerEpoch) -> None:
        """Resign every leadership now (I-18). Called once for each incarnation that ended."""

    def reachability_changed(self) -> None:
        """The coordination service became unreachable, or reachable again."""

    def has_all_data(self) -> bool:
        """Whether nothing on this broker's disks has failed since it was started: otherwise some
        data may be gone, and its epoch proves nothing.
        """


class ClusterIds(NamedTuple):
    """What is known of the cluster before the coordination service is read."""

    known: str | None
    """The id in the broker's own directories."""
    new: str
    """For a cluster that has none yet."""
    seen_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """This broker's newest epoch that a controller has recorded."""
    complete_since: BrokerEpoch | None = None
    """Where log directories are missing: the epoch up to which the others say that nothing is."""


class BrokerLifecycle:
    """Keeps one broker registered, as Kafka's BrokerLifecycleManager does.

    `run` it in a task until `close`; all on the loop's thread.
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
        """`while_registered` runs during every registration; it is cancelled when that ends.

        `registration` must have the id of a directory that this process has locked, and the
        previous epoch if there is evidence of a clean shutdown.
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
        """Whether the service was ever reached."""
        self.current: Registered | None = None
        """None while this broker is not registered."""

    @property
    def path(self) -> str:
        return nodes.broker_path(self._registration.broker_id)

    async def run(self) -> None:
        """Stay registered until `close`; raises why this broker cannot be:

        BrokerIdTaken, InconsistentClusterId, CoordinationIsOlder, AccessDenied.
        """
        await until(self._closing, self._stay_registered())

    def close(self) -> None:
        """`run` ends the session and returns; all leaderships must be resigned before."""
        self._closing.set()

    def note_seen(self, epoch: BrokerEpoch) -> None:
        """A controller has recorded this epoch of ours; older ones are obsolete from here on."""
        seen = max(epoch, self._cluster_ids.seen_epoch)
        self._cluster_ids = self._cluster_ids._replace(seen_epoch=seen)
        self._remember(self._registration.earlier_epochs)

    def _remember(self, epochs: Iterable[BrokerEpoch]) -> None:
        """Keep the earlier epochs that may be the last one a controller has recorded."""
        seen = self._cluster_ids.seen_epoch
        kept = [one for one in epochs if one != NO_BROKER_EPOCH and one >= seen]
        self._registration = self._registration._replace(
            earlier_epochs=tuple(kept[-EARLIER_EPOCHS_MAX:])
        )

    async def _stay_registered(self) -> None:
        failures = 0
        while True:
            try:
                session = await self._coordination.connect(
                    timeout_ms=self._timeout_ms, wait_s=CONNECT_WAIT_S
                )
            except (AuthenticationFailed, NotAllowed) as error:
                raise AccessDenied(error) from error
            except CannotConnect as error:
                failures += 1
                log.warning("cannot connect to the coordination service", error=str(error))
                await asyncio.sleep(CONNECT_BACKOFF.delay_s(failures, self._randomness))
                continue
            failures, self.has_connected = 0, True
            try:
                await self._run_session(session)
            except AuthenticationFailed as error:
                raise AccessDenied(error) from error
            except SessionLost:
                log.warning(
                    "session with the coordination service expired", session=session.session_id
                )
            finally:
                self._lose()
                await asyncio.shield(session.close())

    async def _run_session(self, session: Session) -> None:
        """Use one session, from its beginning to its end."""
        ended = asyncio.Event()

        def on_state(state: SessionState) -> None:
            if state is SessionState.LOST:
                self._lose()
                ended.set()
            elif state is SessionState.SUSPENDED:
                log.warning("coordination service unreachable")
            else:
                log.info("coordination service reachable again")
            self._broker.reachability_changed()

        session.add_listener(on_state)
        try:
            await make_base_nodes(session)
        except NotAllowed as error:
            raise AccessDenied(error) from error
        cluster_id = await agree_on_cluster_id(session, self._cluster_ids)
        self._cluster_ids = self._cluster_ids._replace(known=cluster_id)
        await check_known_epoch(session, self._registration.broker_id, self._cluster_ids)
        secret = Secret(self._randomness.secret(SECRET_BYTES).hex())
        stat = await register(
            session, self._effective_registration(), secret, now_ms=self._clock.wall_ms()
        )
        epoch, previous = BrokerEpoch(stat.czxid), self._registration.previous_epoch
        if epoch <= previous:
            raise CoordinationIsOlder(had=previous, has=epoch)
        if session.state is SessionState.LOST:
            return
        self._remember((*self._registration.earlier_epochs, previous))
        self._registration = self._registration._replace(previous_epoch=epoch)
        self._cluster_ids = self._cluster_ids._replace(complete_since=None)
        self.current = incarnation = Registered(session, epoch, cluster_id, secret)
        log.info("broker registered", broker=self._registration.broker_id, epoch=epoch)
        self._broker.registered(incarnation)
        await until(ended, self._serve_registration(incarnation))

    def _effective_registration(self) -> Registration:
        if self._broker.has_all_data():
            return self._registration
        return self._registration._replace(previous_epoch=NO_BROKER_EPOCH, earlier_epochs=())

    async def _serve_registration(self, incarnation: Registered) -> None:
        await run_until_first(self._watch_registration(incarnation), self._work_beside(incarnation))

    async def _work_beside(self, incarnation: Registered) -> None:
        if self._while_registered is not None:
            await self._while_registered(incarnation)
        await asyncio.Event().wait()  # the registration continues when it ends

    async def _watch_registration(self, incarnation: Registered) -> None:
        """Returns when the registration is gone while the session may live: it was deleted.

        To the rest of the cluster this broker has left; so it resigns and registers again.
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
                    self._lose()  # before anything is awaited
                    return
                await changed.wait()
                await session.connected()

    def _lose(self) -> None:
        incarnation, self.current = self.current, None
        if incarnation is not None:
            self._broker.session_lost(incarnation.epoch)


# -- the nodes ---------------------------------------------------------------------------------


async def make_base_nodes(session: Session) -> None:
    """Create the base nodes that are missing."""
    missing = [one for one in nodes.PERSISTENT if await read_latest(session, one) is None]
    if len(missing) > 1:
        # Together, for one sync instead of many; fails if another broker creates them too.
        with suppress(MultiFailed, MultiUnproved):
            await multi_with_proof(session, [Create(path=one) for one in missing])
            return
    for path in missing:
        with suppress(NodeExists):
            await create_with_proof(session, path)


async def agree_on_cluster_id(session: Session, ids: ClusterIds) -> str:
    """The cluster's id; raises InconsistentClusterId when our directories have another one."""
    found = await read_latest(session, CLUSTER_ID)
    if found is None:
        with suppress(NodeExists):
            await create_with_proof(
                session, CLUSTER_ID, nodes.encode_cluster_id(ids.known or ids.new)
            )
        found = await read_latest(session, CLUSTER_ID)
        invariant(found is not None, "the cluster's id is gone again", path=CLUSTER_ID)
    theirs = nodes.decode_cluster_id(found.data if found is not None else b"")
    if ids.known is not None and theirs != ids.known:
        raise InconsistentClusterId(path=CLUSTER_ID, ours=ids.known, theirs=theirs)
    return theirs


async def check_known_epoch(session: Session, broker_id: BrokerId, ids: ClusterIds) -> None:
    """Raise CoordinationIsOlder where the service has an older epoch than was once recorded.

    The new epoch alone does not show it: a restored ensemble numbers its changes from higher on. No
    entry at all is a broker that was unregistered on purpose, or an empty service, whose numbers
    start over. Raise LogsAreMissing where the recorded epoch is later than the one up to which the
    directories say that nothing is missing.
    """
    path = nodes.known_broker_path(broker_id)
    found = await read_latest(session, path)
    if found is not None:
        known = nodes.decode_known_broker(broker_id, found.data)
        if known.epoch < ids.seen_epoch:
            raise CoordinationIsOlder(had=ids.seen_epoch, has=known.epoch)
        if ids.complete_since is not None and known.epoch > ids.complete_since:
            raise LogsAreMissing(known=ids.complete_since, seen=known.epoch)


async def register(
    session: Session, registration: Registration, secret: Secret, *, now_ms: int
) -> NodeStat:
    """Create the registration and its secret; raises BrokerIdTaken, SessionLost.

    A node with our own directory id is from our previous process, or from a session that we lost:
    the lock on the directory excludes any other live process. It is replaced at once. Any other
    node is given the time in which a dead session expires.
    """
    path = nodes.broker_path(registration.broker_id)
    secret_path = nodes.broker_secret_path(registration.broker_id)
    data = nodes.encode_registration(registration, timestamp_ms=now_ms)
    creations = [
        Create(path=path, data=data, kind=NodeKind.EPHEMERAL),
        Create(path=secret_path, data=secret.reveal().encode()),
    ]
    loop = asyncio.get_running_loop()
    until_s = loop.time() + session.timeout_ms / 1000 * EXPIRY_SHARE
    obsolete = await _deletion_of(session, secret_path)
    while True:
        # All of it in one step, so that no other broker gets in between.
        with suppress(MultiFailed, MultiUnproved):
            await multi_with_proof(session, [*obsolete, *creations])
        found = await read_latest(session, path)
        if found is not None and found.stat.owner == session.session_id:
            return found.stat
        obsolete = await _deletion_of(session, secret_path)
        if found is not None:
            if not _is_same_directory(registration, found):
                if not await _is_gone(session, path, wait_s=until_s - loop.time()):
                    raise BrokerIdTaken(registration.broker_id, path=path)
                continue
            log.info("replacing the registration of the previous process", path=path)
            obsolete.append(Delete(path=path, version=found.stat.version))


async def _deletion_of(session: Session, path: str) -> list[Operation]:
    left = await read_latest(session, path)
    return [] if left is None else [Delete(path=path, version=left.stat.version)]


def _is_same_directory(registration: Registration, found: NodeData) -> bool:
    epoch = BrokerEpoch(found.stat.czxid)
    try:
        theirs = nodes.decode_registration(registration.broker_id, found.data, epoch=epoch)
    except DamagedNode:
        return False
    return theirs.directory_id is not None and theirs.directory_id == registration.directory_id


async def _is_gone(session: Session, path: str, *, wait_s: float) -> bool:
    """Wait that long for the node to disappear, however often it is replaced."""
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
