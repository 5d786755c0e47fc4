"""Ids for idempotent producers, handed out of blocks that were made durable before (I-20).

An id that two producers share would make the broker take the records of one for repetitions of the
other's and drop them. So an id comes only out of a block that the controller has noted as spent;
the rest of a killed broker's block is never used, and there are 2**63 ids.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import ProducerId
from millstream.model.invariant import invariant

PREFETCH_BELOW: Final = 100
"""With fewer ids left the next block is requested: ten times what one burst of clients needs."""

PRODUCER_ID_MAX: Final = 2**63 - 1


class NoProducerIds(OperatingError):
    """All ids were handed out, or the controller gave a block that cannot be used."""


class BlockSource(Protocol):
    """Knows which ids are spent: `ProducerIdBlocks` in a cluster, else `StandaloneController`."""

    async def allocate_producer_id_block(self) -> range:
        """Ids that were never handed out and never will be again; durable when it returns."""


Spawn = Callable[[Coroutine[Any, Any, None], str], None]
"""Runs a coroutine under the broker's task group; the second argument names the task."""


class ProducerIds:
    """One broker's ids. All methods are called on the loop's thread."""

    def __init__(self, source: BlockSource, spawn: Spawn) -> None:
        self._source = source
        self._spawn = spawn
        self._blocks: deque[range] = deque()
        self._handed_out_below = 0
        """Every id so far was below it: blocks come in ascending order."""
        self._waiting: deque[asyncio.Future[ProducerId]] = deque()
        self._is_requesting = False

    @property
    def left_count(self) -> int:
        """Ids that can be handed out without waiting."""
        return sum(map(len, self._blocks))

    def try_next(self) -> ProducerId | None:
        """An id that no producer has or had; None when the next block must be waited for."""
        producer_id = None if self._waiting else self._take()
        if self.left_count < PREFETCH_BELOW:
            self._request_block()
        return producer_id

    async def next(self) -> ProducerId:
        """As `try_next`, waiting for the block; raises the error that prevented it."""
        producer_id = self.try_next()
        if producer_id is not None:
            return producer_id
        future: asyncio.Future[ProducerId] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return await future

    # -- blocks ----------------------------------------------------------------------------

    def _take(self) -> ProducerId | None:
        if not self._blocks:
            return None
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        first = block[0]
        invariant(
            first >= self._handed_out_below,
            "I-20 a producer id was about to be handed out twice",
            producer_id=first,
            handed_out_below=self._handed_out_below,
        )
        self._handed_out_below = first + 1
        return ProducerId(first)

    def _request_block(self) -> None:
        """Request the next block unless that was done; one request serves all that wait."""
        if not self._is_requesting:
            self._is_requesting = True
            self._spawn(self._fetch(), "producer id block")

    async def _fetch(self) -> None:
        try:
            while True:
                self._add(await self._source.allocate_producer_id_block())
                self._serve_waiting()
                if not self._waiting:
                    return
        except OperatingError as error:
            self._fail_waiting(without_frames(error))
        except BaseException:
            # Cancelled, or a fault that the task group reports: no client may wait forever.
            self._fail_waiting(NoProducerIds("no producer ids are available"))
            raise
        finally:
            self._is_requesting = False

    def _add(self, block: range) -> None:
        highest = max((one[-1] for one in self._blocks), default=self._handed_out_below - 1)
        is_fresh = bool(block) and block.step == 1 and highest < block[0]
        if not is_fresh or block[-1] > PRODUCER_ID_MAX:
            raise NoProducerIds(f"the block {block} does not follow id {highest}")
        self._blocks.append(block)

    def _serve_waiting(self) -> None:
        while self._waiting:
            future = self._waiting[0]
            if future.done():  # its client is gone
                self._waiting.popleft()
                continue
            producer_id = self._take()
            if producer_id is None:
                return
            self._waiting.popleft()
            future.set_result(producer_id)

    def _fail_waiting(self, error: OperatingError) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
