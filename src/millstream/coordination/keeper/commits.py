"""Group commit, and the gate behind which answers wait for it.

While one batch is on its way to the disk the next one gathers. What is to leave the server waits
until everything that was logged before it is durable, reads included: otherwise one client could
see what a crash then takes back.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.journal import Journal, KeeperDataDamaged
from millstream.model.ids import Zxid
from millstream.model.invariant import invariant
from millstream.observe.logs import get_logger
from millstream.runtime.background import Background, Outcome

log = get_logger("millstream.coordination.keeper.commits")


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""A snapshot that these prevent is retried; what is on disk is not in doubt."""


class _Waiting(NamedTuple):
    needed: Zxid
    act: Callable[[], None]


class Commits:
    """Between the machine and the journal. All on the loop, the journal's work in threads."""

    def __init__(
        self,
        journal: Journal,
        background: Background,
        durable: Zxid,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._background = background
        self._on_failure = on_failure
        self.durable = durable
        self._logged = durable
        self._gathered: list[Txn] = []
        self._waiting: deque[_Waiting] = deque()
        self._is_writing = False
        self._fold_before: Zxid | None = None
        self._is_folding = False
        self._has_failed = False
        self._changed = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no thread has the journal's files."""
        return not (self._is_writing or self._gathered or self._is_folding)

    async def wait_idle(self, *, timeout_s: float) -> bool:
        """Whether it became idle in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_idle:
                    self._changed.clear()
                    await self._changed.wait()
        return self.is_idle

    def log(self, txn: Txn) -> None:
        invariant(txn.zxid == self._logged + 1, "a gap in the log", zxid=txn.zxid)
        self._logged = txn.zxid
        self._gathered.append(txn)

    def when_durable(self, act: Callable[[], None]) -> None:
        """Act when all that was logged so far is durable; at once if it is."""
        if self.durable == self._logged and not self._waiting:
            act()
        else:
            self._waiting.append(_Waiting(self._logged, act))

    def start(self) -> None:
        """Write what was gathered, unless the disk is busy with what came before."""
        if self._is_writing or not self._gathered or self._has_failed:
            return
        batch, self._gathered = self._gathered, []
        self._is_writing = True

        def written(outcome: Outcome[Zxid | None]) -> None:
            self._is_writing = False
            self._changed.set()
            if outcome.error is not None:
                self._fail(outcome.error)
                return
            self.durable = batch[-1].zxid
            if outcome.value is not None:
                self._fold_before = outcome.value
            self._release()
            self.start()
            self._start_fold()

        self._background.submit(lambda: self._journal.append(batch), written, name="keeper log")

    def _release(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].needed <= self.durable:
            waiting.popleft().act()

    def _start_fold(self) -> None:
        before = self._fold_before
        if before is None or self._is_folding or self._has_failed:
            return
        self._fold_before, self._is_folding = None, True

        def folded(outcome: Outcome[None]) -> None:
            self._is_folding = False
            self._changed.set()
            if _is_harmless(outcome.error):
                # All logs still exist, so nothing is lost; the next roll retries.
                log.error("snapshot failed", error=outcome.error)
            elif outcome.error is not None:
                self._fail(outcome.error)
            self._start_fold()

        self._background.submit(lambda: self._journal.fold(before), folded, name="keeper snapshot")

    def _fail(self, error: BaseException) -> None:
        """After a failed write it is unknown what the disk has: nothing more may be sent."""
        self._has_failed = True
        self._waiting.clear()
        self._gathered.clear()
        self._on_failure(error)


def _is_harmless(error: BaseException | None) -> bool:
    """Whether a failed snapshot can be retried; also after damage: memory has the true state, and a
    restart would only find the damage later.
    """
    is_short = isinstance(error, OSError) and error.errno in _NO_ROOM
    return is_short or isinstance(error, KeeperDataDamaged)
