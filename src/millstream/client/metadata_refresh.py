"""Metadata requests: callers that arrive while one is in flight share the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from millstream.client.errors import ClientClosed, code_of, error_for
from millstream.client.metadata import MetadataCache, TopicInfo, topic_info
from millstream.observe.logs import get_logger
from millstream.rpc.connection import Connection
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

_log = get_logger(__name__)


class _Round:
    """One request, and the topics it is for."""

    __slots__ = ("has_begun", "names", "task")

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.has_begun = False
        self.task: asyncio.Task[None]


class Refresher:
    """Single attempts; callers retry, each within its own deadline."""

    def __init__(
        self, metadata: MetadataCache, connect: Callable[[], Awaitable[Connection]]
    ) -> None:
        self._metadata = metadata
        self._connect = connect
        self._turn = asyncio.Lock()
        self._rounds: dict[bool, _Round] = {}
        """The newest, by whether it may create topics."""
        self._running: set[asyncio.Task[None]] = set()

    async def refresh(self, names: Iterable[str], *, creates: bool) -> None:
        """Raises an RpcError, MalformedFrame or BrokersUnreachable."""
        current = self._rounds.get(creates)
        if current is None or current.has_begun:
            # The answer to one in flight may be older than what the caller just saw.
            current = self._rounds[creates] = _Round()
            work = self._run(current, creates=creates)
            current.task = asyncio.get_running_loop().create_task(work, name="refresh metadata")
            self._running.add(current.task)
            current.task.add_done_callback(self._finished)
        current.names.update(dict.fromkeys(names))
        # Shielded: a caller that is cancelled does not cancel the request for the others.
        try:
            await asyncio.shield(current.task)
        except asyncio.CancelledError:
            if current.task.cancelled():
                raise ClientClosed from None
            raise

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, also when all callers were cancelled

    async def _run(self, current: _Round, *, creates: bool) -> None:
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            current.has_begun = True
            if not creates:
                current.names.update(dict.fromkeys(self._metadata.to_refresh(now_s)))
            names = list(current.names)
            response = await self._request(names, creates=creates)
            now_s = asyncio.get_running_loop().time()
            for one in self._metadata.update(response, names=names, now_s=now_s):
                _log.warning(
                    "topic was deleted and recreated",
                    topic=one.topic,
                    old_id=one.old_id,
                    new_id=one.new_id,
                )

    async def _request(self, names: list[str] | None, *, creates: bool = False) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=one) for one in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        connection = await self._connect()
        response: MetadataResponse = await connection.send(request)
        code = code_of(response.error_code)
        if code is not ErrorCode.NONE:
            raise error_for(code, about="metadata")
        if not response.brokers:
            # A broker that has just started and has no metadata yet.
            raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, about="metadata")
        return response

    async def all_topics(self) -> dict[str, TopicInfo]:
        """Every topic without an error; updates the cached brokers, but no topics."""
        response = await self._request(None)
        now_s = asyncio.get_running_loop().time()
        self._metadata.update(response, names=(), now_s=now_s)
        return {
            one.name: topic_info(one)
            for one in response.topics
            if one.name is not None and one.error_code == ErrorCode.NONE
        }

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
