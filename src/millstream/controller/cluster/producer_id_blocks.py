"""Blocks of producer ids, allocated by a versioned write: no id is ever used twice (I-20).

Every broker allocates its own, without the controller. Whether a write whose answer was lost
succeeded is proved by the node's content, which names the session; if that is no longer possible
the block is left unused, for there are 2**63 ids.
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
from millstream.coordination.proofs import create_with_proof, read_latest, set_with_proof
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.model.invariant import invariant
from millstream.model.limits import PRODUCER_ID_BLOCK

ATTEMPTS_MAX: Final = 1_000
"""Every failed attempt is one that another broker won; more than this is a bug."""

WAIT_S: Final = 30.0
"""The limit for one block, even if the connection is lost; the producer retries."""


class NoProducerIdBlock(OperatingError):
    """There is no session, or no block could be allocated in time."""


class ProducerIdBlocks:
    """Allocates the blocks of one broker; one instance, one block at a time.

    Two concurrent writes of one session would look alike, and one could be taken for the other.
    """

    def __init__(self, broker_id: BrokerId, session: Callable[[], Session | None]) -> None:
        """`session` returns the broker's current session."""
        self._broker_id = broker_id
        self._session = session
        self._taken_below = 0
        self._turn = asyncio.Lock()

    async def allocate_producer_id_block(self) -> range:
        """Ids that no producer got before or will get again; raises NoProducerIdBlock."""
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
    """Allocate the next block; raises SessionLost."""
    for _ in range(ATTEMPTS_MAX):
        found = await read_latest(session, PRODUCER_IDS)
        if found is None:
            with suppress(NodeExists):
                await create_with_proof(session, PRODUCER_IDS)
            continue
        last = decode_producer_ids(found.data)
        start = 0 if last is None else last.stop
        block = range(start, start + PRODUCER_ID_BLOCK)
        data = _signed(encode_producer_ids(broker_id, block), session)
        try:
            await set_with_proof(session, PRODUCER_IDS, data, version=found.stat.version)
        except BadVersion:
            continue  # another broker got it
        return block
    raise NoProducerIdBlock(f"{ATTEMPTS_MAX} blocks went to others")


def _signed(data: bytes, session: Session) -> bytes:
    """Add the session's id, so that no broker takes another's block for its own.

    Otherwise two incarnations of one broker would write the same, and both would find their data.
    """
    return json.dumps({**json.loads(data), "session": session.session_id}).encode("ascii")
