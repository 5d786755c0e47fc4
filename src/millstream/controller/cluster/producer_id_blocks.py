"""Blocks of producer ids, taken by a versioned write: no id twice in the cluster's life (I-20).

Every broker takes its own, without the controller. A block whose answer was lost is proved by its
content, which names the session; if that is not possible any more it is left unused, for there are
2**63 ids.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from millstream.controller.cluster.nodes import (
    PRODUCER_IDS,
    decode_producer_ids,
    encode_producer_ids,
)
from millstream.coordination.errors import BadVersion, NodeExists
from millstream.coordination.port import Session
from millstream.coordination.proofs import create_with_proof, read_surely, set_surely
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.model.invariant import invariant
from millstream.model.limits import PRODUCER_ID_BLOCK

ATTEMPTS_MAX: Final = 1_000
"""Every attempt that fails is one that another broker won; more than that is a fault."""

WAIT_S: Final = 30.0
"""For one block, whatever happens to the connection; the producer asks again."""


class NoProducerIdBlock(OperatingError):
    """There is no session, or no block could be had in time."""


class ProducerIdBlocks:
    """The blocks of one broker; there is one of it, and it takes one block at a time.

    Two writes of one session at once would look alike, and one could be taken for the other.
    """

    def __init__(self, broker_id: BrokerId, session: Callable[[], Session | None]) -> None:
        """`session` gives the broker's present session."""
        self._broker_id = broker_id
        self._session = session
        self._taken_below = 0
        self._turn = asyncio.Lock()

    async def allocate_producer_id_block(self) -> range:
        """Ids that nobody got before and nobody will get again; raises NoProducerIdBlock."""
        try:
            async with asyncio.timeout(WAIT_S), self._turn:
                session = self._session()
                if session is None:
                    raise NoProducerIdBlock("this broker has no session")
                block = await take_block(session, self._broker_id)
        except TimeoutError:
            raise NoProducerIdBlock(f"no block of producer ids within {WAIT_S} s") from None
        invariant(
            block.start >= self._taken_below,
            "I-20 a block of producer ids was given twice",
            start=block.start,
            taken_below=self._taken_below,
        )
        self._taken_below = block.stop
        return block


async def take_block(session: Session, broker_id: BrokerId) -> range:
    """The next block; raises SessionLost."""
    for _ in range(ATTEMPTS_MAX):
        found = await read_surely(session, PRODUCER_IDS)
        if found is None:
            with suppress(NodeExists):
                await create_with_proof(session, PRODUCER_IDS)
            continue
        last = decode_producer_ids(found.data)
        start = 0 if last is None else last.stop
        block = range(start, start + PRODUCER_ID_BLOCK)
        data = _signed(encode_producer_ids(broker_id, block), session)
        try:
            await set_surely(session, PRODUCER_IDS, data, version=found.stat.version)
        except BadVersion:
            continue  # another broker has it
        return block
    raise NoProducerIdBlock(f"{ATTEMPTS_MAX} blocks went to others")


def _signed(data: bytes, session: Session) -> bytes:
    """With the session's id, so that nobody takes another's block for his own.

    Two incarnations of one broker would write the same otherwise, and both would find their data.
    """
    return json.dumps({**json.loads(data), "session": session.session_id}).encode("ascii")
