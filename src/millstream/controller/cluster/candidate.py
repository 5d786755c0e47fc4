"""Controller election: the first broker that creates `/controller` wins.

The same multi raises `/controller_epoch`. Its new version is the fence behind which the elected
controller writes: any later election changes it. The outcome of an election whose answer was lost
is known from the node's owner.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    Registration,
    broker_path,
    decode_controller,
    decode_controller_epoch,
    decode_registration,
    encode_controller,
    encode_controller_epoch,
)
from millstream.controller.cluster.registration import Registered
from millstream.coordination.errors import (
    ConnectionLost,
    MultiFailed,
    MultiUnproved,
    NodeExists,
    NoNode,
    SessionLost,
)
from millstream.coordination.port import (
    Check,
    Create,
    Delete,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    Set,
)
from millstream.coordination.proofs import create_with_proof, multi_with_proof, read_latest
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.model.invariant import invariant
from millstream.observe.logs import get_logger
from millstream.rpc.backoff import Backoff
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.task_race import Wake, run_until_first

log = get_logger("millstream.controller.candidate")

FIRST_EPOCH: Final = 0
"""The content of `/controller_epoch` before the first election."""

ELECTION_BACKOFF: Final = Backoff(initial_s=0.05, max_s=5.0)
"""After a failed election, or after resigning with an error: another broker may do better."""


class Elected(NamedTuple):
    """A won election."""

    controller_epoch: int
    epoch_version: int
    """Of `/controller_epoch`; every write checks it (I-16)."""


class Active(Protocol):
    """The controller's work, from its election on."""

    async def run(self) -> None:
        """Returns when it was deposed; raises SessionLost, or what made it give up."""

    def depose(self) -> None:
        """Nothing more is written, and waiting callers get an error. Harmless when called twice."""


A = TypeVar("A", bound=Active)


class Candidate(Generic[A]):
    """One broker's candidacy; `run` lasts as long as one registration."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        make_active: Callable[[Registered, Elected], A],
        clock: Clock,
        randomness: Randomness,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` is called when the known controller changes."""
        self.broker_id = broker_id
        self._make_active = make_active
        self._clock = clock
        self._randomness = randomness
        self._on_change = on_change
        self._failures = 0
        self.controller_id: BrokerId | None = None
        """The controller as far as this broker knows; None: there is none, or it is not known."""
        self.controller: Registration | None = None
        """That broker's registration, with its addresses."""
        self.active: A | None = None
        """Set only while this broker is the controller."""

    async def run(self, incarnation: Registered) -> None:
        """Run for election, serve, or watch the controller until the session ends."""
        session = incarnation.session
        try:
            while True:
                try:
                    await self._run_once(incarnation)
                except ConnectionLost:
                    await session.connected()
                except SessionLost:
                    raise
                except OperatingError as error:
                    # Damaged nodes, or no access: logged and retried. The broker keeps serving.
                    log.error("controller election attempt failed", error=error)
                    self._failures += 1
        except SessionLost:
            return
        finally:
            if self.controller_id == self.broker_id:
                self._set_controller(None)

    async def _run_once(self, incarnation: Registered) -> None:
        session = incarnation.session
        await self._pause()
        changed = Wake()
        try:
            found = await session.get(CONTROLLER, watch=changed)
        except NoNode:
            self._set_controller(None)
            elected = await self._run_for_election(session)
            if elected is None:
                self._failures += 1
                return
            await self._serve(incarnation, elected)
            return
        if found.stat.owner == session.session_id:
            # Left over from an earlier term that ended before the node could be deleted.
            await _delete_own(session)
            return
        try:
            controller_id = decode_controller(found.data)
            self._set_controller(controller_id, await _registration(session, controller_id))
            self._failures = 0
        except DamagedNode as error:
            log.error("cannot find out which broker is the controller", error=str(error))
            self._set_controller(None)
        await changed.wait()

    async def _pause(self) -> None:
        if self._failures:
            await asyncio.sleep(ELECTION_BACKOFF.delay_s(self._failures, self._randomness))

    # -- elections -------------------------------------------------------------------------

    async def _run_for_election(self, session: Session) -> Elected | None:
        """Try to be elected; None when another broker was first."""
        found = await read_latest(session, CONTROLLER_EPOCH)
        if found is None:
            first = encode_controller_epoch(FIRST_EPOCH)
            with suppress(NodeExists):
                await create_with_proof(session, CONTROLLER_EPOCH, first)
            found = await read_latest(session, CONTROLLER_EPOCH)
            if found is None:
                return None
        epoch = decode_controller_epoch(found.data) + 1
        data = encode_controller(self.broker_id, timestamp_ms=self._clock.wall_ms())
        operations: list[Operation] = [
            Create(path=CONTROLLER, data=data, kind=NodeKind.EPHEMERAL),
            Set(
                path=CONTROLLER_EPOCH,
                data=encode_controller_epoch(epoch),
                version=found.stat.version,
            ),
        ]
        try:
            results = await multi_with_proof(session, operations)
        except (MultiFailed, MultiUnproved):
            return None
        stat = results[1]
        invariant(
            isinstance(stat, NodeStat) and stat.version == found.stat.version + 1,
            "I-16 the controller epoch was not raised by one",
            epoch=epoch,
        )
        return Elected(epoch, found.stat.version + 1)

    async def _serve(self, incarnation: Registered, elected: Elected) -> None:
        """Be the controller until deposed, or until `/controller` is no longer ours."""
        session = incarnation.session
        log.info("elected controller", broker=self.broker_id, epoch=elected.controller_epoch)
        self.active = active = self._make_active(incarnation, elected)
        self._set_controller(self.broker_id)
        try:
            await run_until_first(active.run(), self._watch_controller_node(session))
            self._failures += 1
        except SessionLost:
            raise
        except OperatingError as error:
            log.error("resigned as controller after an error", error=error)
            self._failures += 1
        finally:
            active.depose()
            self.active = None
            self._set_controller(None)
        await self._resign(session, elected)

    async def _watch_controller_node(self, session: Session) -> None:
        """Returns when the node is gone: an operator deletes it to trigger an election."""
        while True:
            changed = Wake()
            try:
                found = await session.get(CONTROLLER, watch=changed)
            except NoNode:
                return
            except ConnectionLost:
                await session.connected()
                continue
            if found.stat.owner != session.session_id:
                return
            await changed.wait()
            await session.connected()

    async def _resign(self, session: Session, elected: Elected) -> None:
        """Delete `/controller`; not if another broker was elected meanwhile, whose node has the
        same version.
        """
        with suppress(MultiFailed, MultiUnproved):
            await multi_with_proof(
                session,
                [
                    Check(path=CONTROLLER_EPOCH, version=elected.epoch_version),
                    Delete(path=CONTROLLER, version=0),
                ],
            )

    def _set_controller(
        self, controller_id: BrokerId | None, registration: Registration | None = None
    ) -> None:
        if (controller_id, registration) == (self.controller_id, self.controller):
            return
        self.controller_id, self.controller = controller_id, registration
        if self._on_change is not None:
            self._on_change()


async def _registration(session: Session, broker_id: BrokerId) -> Registration | None:
    """The controller's registration, which it made before its election; None if it was deleted."""
    found = await read_latest(session, broker_path(broker_id))
    if found is None:
        return None
    epoch = BrokerEpoch(found.stat.czxid)
    return decode_registration(broker_id, found.data, epoch=epoch)


async def _delete_own(session: Session) -> None:
    """Delete our own node, fenced by the epoch read before: any later election has raised it."""
    epoch = await read_latest(session, CONTROLLER_EPOCH)
    found = await read_latest(session, CONTROLLER)
    if epoch is None or found is None or found.stat.owner != session.session_id:
        return
    with suppress(MultiFailed, MultiUnproved):
        await multi_with_proof(
            session,
            [
                Check(path=CONTROLLER_EPOCH, version=epoch.stat.version),
                Delete(path=CONTROLLER, version=found.stat.version),
            ],
        )
