"""A session that loses replies: a request was carried out or not, and the client cannot know which.

Connections that break in a simulated network do the same now and then; here a test chooses how
often a write is affected, and can plan one loss at one call.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from millstream.coordination.errors import ConnectionLost
from millstream.coordination.port import (
    Coordination,
    Created,
    MultiResult,
    NodeChildren,
    NodeData,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    SessionState,
    StateListener,
    Watcher,
)
from millstream.model.ids import SessionId
from millstream.runtime.randomness import Randomness

T = TypeVar("T")

WRITES: Final = frozenset({"create", "set", "delete", "multi"})
PAUSE_S: Final = 0.005


class ReplyLosses:
    """Decides what is lost, and counts it by call and outcome."""

    def __init__(self, randomness: Randomness, *, probability: float = 0.0) -> None:
        self._randomness = randomness
        self.probability = probability
        self.planned: list[tuple[str, bool]] = []
        """The next call of that name is lost, after it was carried out or before."""
        self.counts: Counter[str] = Counter()
        self.before_retry: Callable[[], Awaitable[None]] | None = None
        """What else happens while a reply is lost, before the caller can retry."""

    def lose_next(self, call: str, *, is_carried_out: bool) -> None:
        self.planned.append((call, is_carried_out))

    def fate(self, call: str) -> bool | None:
        """None: nothing is lost. Else whether the call is carried out all the same."""
        for number, (name, is_carried_out) in enumerate(self.planned):
            if name == call:
                del self.planned[number]
                return is_carried_out
        if call in WRITES and self._randomness.chance(self.probability):
            return self._randomness.chance(0.5)
        return None

    async def forward(self, call: str, send: Callable[[], Awaitable[T]]) -> T:
        fate = self.fate(call)
        if fate is None:
            return await send()
        self.counts[f"{call} {'carried out' if fate else 'not carried out'}"] += 1
        if fate:
            try:
                await send()
            finally:
                await asyncio.sleep(PAUSE_S)
        if self.before_retry is not None:
            await self.before_retry()
        raise ConnectionLost("the answer was lost", is_in_doubt=True)


class FlakySession:
    """Wraps a session and loses some of its replies."""

    def __init__(self, real: Session, losses: ReplyLosses) -> None:
        self.real = real
        self.losses = losses

    @property
    def session_id(self) -> SessionId:
        return self.real.session_id

    @property
    def timeout_ms(self) -> int:
        return self.real.timeout_ms

    @property
    def state(self) -> SessionState:
        return self.real.state

    def add_listener(self, listener: StateListener) -> None:
        self.real.add_listener(listener)

    async def connected(self) -> None:
        await self.real.connected()

    async def create(
        self, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
    ) -> Created:
        return await self.losses.forward("create", lambda: self.real.create(path, data, kind=kind))

    async def exists(self, path: str, *, watch: Watcher | None = None) -> NodeStat | None:
        return await self.losses.forward("exists", lambda: self.real.exists(path, watch=watch))

    async def get(self, path: str, *, watch: Watcher | None = None) -> NodeData:
        return await self.losses.forward("get", lambda: self.real.get(path, watch=watch))

    async def children(self, path: str, *, watch: Watcher | None = None) -> NodeChildren:
        return await self.losses.forward("children", lambda: self.real.children(path, watch=watch))

    async def set(self, path: str, data: bytes, *, version: int) -> NodeStat:
        return await self.losses.forward("set", lambda: self.real.set(path, data, version=version))

    async def delete(self, path: str, *, version: int) -> None:
        await self.losses.forward("delete", lambda: self.real.delete(path, version=version))

    async def multi(self, operations: Sequence[Operation]) -> list[MultiResult]:
        return await self.losses.forward("multi", lambda: self.real.multi(operations))

    async def sync(self, path: str) -> None:
        await self.losses.forward("sync", lambda: self.real.sync(path))

    async def close(self) -> None:
        await self.real.close()


class FlakyCoordination:
    """Opens flaky sessions, which share their losses."""

    def __init__(self, real: Coordination, losses: ReplyLosses) -> None:
        self.real = real
        self.losses = losses
        self.sessions: list[FlakySession] = []

    async def connect(self, *, timeout_ms: int, wait_s: float) -> FlakySession:
        session = FlakySession(
            await self.real.connect(timeout_ms=timeout_ms, wait_s=wait_s), self.losses
        )
        self.sessions.append(session)
        return session
