"""The secrets of the cluster's brokers, as the coordination service has them.

They are read when the metadata shows a broker, and when one that is not known yet connects, and
kept: a broker that is known can connect again while the coordination service is out of reach, also
after its own session ended there unnoticed.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from millstream.broker.requests.between_brokers import BrokerUnverifiable, NotABroker
from millstream.broker.requests.dispatch import Spawn
from millstream.controller.cluster import nodes
from millstream.controller.image import BrokerImage
from millstream.coordination.errors import CoordinationError, NoNode
from millstream.coordination.port import Session
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.redaction import Secret

READS_MAX: Final = 8
"""At a time. Anybody can claim to be a broker and cause a read; those of other components have
room beside them."""

READ_WAIT_S: Final = 5.0


class KnownSecret(NamedTuple):
    """Of one incarnation."""

    epoch: BrokerEpoch
    secret: Secret


class BrokerSecrets:
    """One per broker of a cluster; all methods run on the loop's thread."""

    def __init__(
        self, broker_id: BrokerId, session: Callable[[], Session | None], spawn: Spawn
    ) -> None:
        self._broker_id = broker_id
        self._session = session
        self._spawn = spawn
        self._known: dict[BrokerId, KnownSecret] = {}
        """Of registered brokers only, so there are as many as ever were in the cluster."""
        self._reads = asyncio.Semaphore(READS_MAX)

    async def secret_of(self, broker_id: BrokerId, epoch: BrokerEpoch) -> Secret:
        """Raises NotABroker, BrokerUnverifiable."""
        known = self._known.get(broker_id)
        if known is None or known.epoch != epoch:
            known = await self._read(broker_id)
        if known is None or known.epoch != epoch:
            raise NotABroker(f"broker {broker_id} is not registered with epoch {epoch}")
        return known.secret

    def note_brokers(self, brokers: Mapping[BrokerId, BrokerImage]) -> None:
        """Read the secrets of those that are new in an image."""
        missing = [
            one.broker_id
            for one in brokers.values()
            if not one.is_fenced and one.broker_id != self._broker_id and not self._is_known(one)
        ]
        if missing:
            self._spawn(self._read_all(missing), "read the secrets of brokers")

    def _is_known(self, broker: BrokerImage) -> bool:
        known = self._known.get(broker.broker_id)
        return known is not None and known.epoch == broker.epoch

    async def _read_all(self, missing: list[BrokerId]) -> None:
        for one in missing:
            with suppress(BrokerUnverifiable):  # read again when it connects
                await self._read(one)

    async def _read(self, broker_id: BrokerId) -> KnownSecret | None:
        """As the coordination service has it now; None: no such broker is registered."""
        path = nodes.broker_secret_path(broker_id)
        try:
            async with self._reads, asyncio.timeout(READ_WAIT_S):
                session = self._session()
                if session is None:
                    raise BrokerUnverifiable("this broker is not registered itself")
                await session.sync(path)
                found = await session.get(path)
        except NoNode:
            return None
        except (CoordinationError, TimeoutError) as error:
            raise BrokerUnverifiable(f"the secret cannot be read: {error}") from error
        secret = Secret(found.data.decode("ascii", "replace"))
        known = KnownSecret(BrokerEpoch(found.stat.czxid), secret)
        self._known[broker_id] = known
        return known
