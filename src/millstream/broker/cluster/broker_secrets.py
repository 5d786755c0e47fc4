"""The secrets of the cluster's brokers, as the coordination service has them.

They are read when the metadata shows a broker, and when one that is not known yet connects, and
kept: a broker that is known can connect again while the coordination service is out of reach, also
after its own session ended there unnoticed.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, NamedTuple

from millstream.broker.requests.between_brokers import BrokerUnverifiable, NotABroker
from millstream.broker.requests.dispatch import Spawn
from millstream.controller.cluster import nodes
from millstream.controller.cluster.registration import SECRET_BYTES
from millstream.controller.image import BrokerImage
from millstream.coordination.errors import CoordinationError, NoNode
from millstream.coordination.port import Session
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.redaction import Secret
from millstream.runtime.fair_permits import FairPermits, TooManyWait

READS_MAX: Final = 8
"""For claims, at a time. Anybody can claim to be a broker and cause a read; those of other
components have room beside them."""

WAITING_MAX: Final = 64
"""Claims that wait for a read. An address with many waits for itself, and one claim more makes one
of the address with the most try again: all together wait for tens of milliseconds."""

METADATA_READS_MAX: Final = 8
"""For brokers that the metadata names, beside those for claims."""

READ_WAIT_S: Final = 5.0
"""With the wait for others."""

_SECRET: Final = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")


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
        self._claims: FairPermits[str] = FairPermits(READS_MAX, waiting_max=WAITING_MAX)
        self._metadata_reads = asyncio.Semaphore(METADATA_READS_MAX)
        self._being_read: set[BrokerId] = set()
        """Of the metadata's brokers."""

    async def secret_of(
        self, broker_id: BrokerId, epoch: BrokerEpoch, *, client_host: str
    ) -> Secret:
        """For a claim from that address; raises NotABroker, BrokerUnverifiable."""
        known = self._known.get(broker_id)
        if known is None or known.epoch != epoch:
            known = await self._read(broker_id, self._claims.permit(client_host))
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
        missing = [one for one in missing if one not in self._being_read]
        if missing:
            self._being_read.update(missing)
            self._spawn(self._read_all(missing), "read the secrets of brokers")

    def _is_known(self, broker: BrokerImage) -> bool:
        known = self._known.get(broker.broker_id)
        return known is not None and known.epoch == broker.epoch

    async def _read_all(self, missing: list[BrokerId]) -> None:
        try:
            for one in missing:
                with suppress(BrokerUnverifiable, NotABroker):  # read again when it connects
                    await self._read(one, self._metadata_reads)
        finally:
            self._being_read.difference_update(missing)

    async def _read(
        self, broker_id: BrokerId, permit: AbstractAsyncContextManager[None]
    ) -> KnownSecret | None:
        """As the coordination service has it now; None: no such broker is registered."""
        path = nodes.broker_secret_path(broker_id)
        try:
            async with asyncio.timeout(READ_WAIT_S), permit:
                session = self._session()
                if session is None:
                    raise BrokerUnverifiable("this broker is not registered itself")
                await session.sync(path)
                found = await session.get(path)
        except NoNode:
            return None
        except (CoordinationError, TimeoutError) as error:
            raise BrokerUnverifiable(f"the secret cannot be read: {error}") from error
        except TooManyWait as error:
            raise BrokerUnverifiable("too many claims to be a broker") from error
        secret = Secret(found.data.decode("ascii", "replace"))
        if _SECRET.fullmatch(secret.reveal()) is None:
            # Everybody can compute proofs with the secret of a node that was emptied.
            raise NotABroker(f"the secret of broker {broker_id} is damaged")
        known = KnownSecret(BrokerEpoch(found.stat.czxid), secret)
        self._known[broker_id] = known
        return known
