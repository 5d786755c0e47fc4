"""Forwards requests that change metadata to the controller; any broker accepts them.

The request's bytes are sent in an Envelope as they came, and the answer's bytes come back the same
way. While the controller is unknown, does not answer or was deposed, the request waits for the next
one, up to its time limit; then the client gets NOT_CONTROLLER and retries. A request whose answer
was lost is sent again too: as with a client's retry, a change that was made may then be refused as
made already.

Requests to the controller's own broker take the same path, without the Envelope, so that they are
passed on if that controller is deposed meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from millstream.broker.configs.split import split
from millstream.broker.requests import registry
from millstream.broker.requests.context import Context, Peer, RequestFacts
from millstream.broker.requests.dispatch import SMALL_BODY_BYTES, Dispatch, Spawn
from millstream.broker.requests.registry import Handler
from millstream.broker.requests.response_collector import CollectingPeer, RequestRefused
from millstream.broker.requests.services import Services
from millstream.controller.cluster.errors import NotController
from millstream.observe.logs import get_logger
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.runtime.scheduler import Computation, CooperativeScheduler
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import decode_response_header, encode_request_header
from millstream.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from millstream.wire.primitives import MalformedFrame

log = get_logger("millstream.broker.cluster.forwarding")

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UPDATE_FEATURES,
        ApiKey.DESCRIBE_QUORUM,
    }
)

CHECK_INTERVAL_S: Final = 0.1
"""How often a waiting request checks for a new controller."""

TIMEOUT_MIN_S: Final = 1.0
"""The least time for a request, whatever the client allows, as on a standalone broker."""

Barrier = Callable[[Any, bytes, int], Awaitable[None]]
"""Of a request, its answer with the header, and their version; waits for this broker's metadata."""

_SIZE: Final = Struct(">i")

T = TypeVar("T")


class Route(NamedTuple):
    """The controller, as far as this broker knows."""

    is_local: bool
    address: Address | None
    """Of another broker; None if the controller is this broker, or unknown."""


class _Failed(Exception):
    """This attempt failed; the next may succeed."""


class _ForwardedRequest(NamedTuple):
    """What the controller gets: the client's request, or the part that is not this broker's own."""

    request: Any
    body: bytes
    join: Callable[[Any], Any] | None = None
    """Makes the whole answer from the controller's part."""

    def complete(self, context: Context, data: bytes) -> bytes:
        """The answer for the client, with its header."""
        if self.join is None:
            return data
        key, version = ApiKey(context.facts.api_key), context.version
        begin = decode_response_header(data, key, version)[1]
        answer = response_type(key).decode(memoryview(data)[begin:], version)
        return data[:begin] + bytes(self.join(answer).encode(version))


class Forwarding:
    """One per broker of a cluster. All methods run on the loop's thread."""

    def __init__(
        self,
        dispatch: Dispatch,
        services: Callable[[], Services],
        route: Callable[[], Route],
        connections: Connections,
        *,
        spawn: Spawn,
        scheduler: CooperativeScheduler | None,
        timeout_s: float,
        metadata_barrier: Barrier | None = None,
    ) -> None:
        """`metadata_barrier` waits a limited time until this broker's metadata has the change."""
        self._dispatch = dispatch
        self._services = services
        self._route = route
        self._connections = connections
        self._spawn = spawn
        self._scheduler = scheduler
        self._timeout_s = timeout_s
        self._metadata_barrier = metadata_barrier

    def take(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        """Pass the request to the controller; the answer is sent later."""
        key = ApiKey(facts.api_key)
        handler = registry.load(key)
        if facts.version not in handler.versions:
            self._dispatch.serve(peer, facts, body)  # which rejects it
            return
        context = Context(self._services(), peer, facts)
        kept = bytes(body)
        is_large = len(kept) > SMALL_BODY_BYTES
        if is_large:
            peer.mute()
            peer.hold(facts.number)
        work = self._forward(context, handler, kept, is_large=is_large)
        self._spawn(work, f"forward {key.name} of connection {peer.connection_id}")

    async def _forward(
        self, context: Context, handler: Handler, body: bytes, *, is_large: bool
    ) -> None:
        try:
            await self._until_answered(context, handler, body)
        finally:
            if is_large:
                context.peer.let_go(context.facts.number)
                context.peer.unmute()

    async def _until_answered(self, context: Context, handler: Handler, body: bytes) -> None:
        facts = context.facts
        try:
            request = await self._decode(context, handler, body)
        except MalformedFrame as error:
            name = ApiKey(facts.api_key).name
            context.peer.close(f"malformed {name} request of version {facts.version}: {error}")
            return
        change = split(request)
        if change is None:
            await self._retry(context, handler, _ForwardedRequest(request, body))
        elif change.remote is None:
            self._dispatch.serve(context.peer, facts, memoryview(body))
        else:
            try:
                done = await handler.handle(context, change.local)
            except Exception as error:  # noqa: BLE001 - the outermost frame of a request
                await self._dispatch.refuse(context, handler, request, error)
                return
            rest = change.remote
            body = await self._compute(partial(rest.encode, facts.version), len(body))
            forwarded = _ForwardedRequest(rest, body, partial(change.join, done))
            await self._retry(context, handler, forwarded)

    async def _retry(
        self, context: Context, handler: Handler, forwarded: "_ForwardedRequest"
    ) -> None:
        """Until it is answered, or its time limit has passed."""
        deadline_s = self._now_s() + self._limit_s(forwarded.request)
        while True:
            try:
                await self._attempt(context, forwarded, deadline_s)
            except (NotController, RpcError, _Failed):
                if self._now_s() + CHECK_INTERVAL_S >= deadline_s:
                    await self._refuse(context, handler, forwarded)
                    return
                await asyncio.sleep(CHECK_INTERVAL_S)
            except RequestRefused as error:
                context.peer.close(str(error))
                return
            else:
                return

    async def _refuse(
        self, context: Context, handler: Handler, forwarded: "_ForwardedRequest"
    ) -> None:
        if forwarded.join is None:
            await self._dispatch.refuse(context, handler, forwarded.request, NotController())
            return
        refused = handler.failed(forwarded.request, ErrorCode.NOT_CONTROLLER, context.version)
        context.answer(forwarded.join(refused))

    async def _decode(self, context: Context, handler: Handler, body: bytes) -> Any:
        read = partial(handler.decode, memoryview(body), context.version)
        return await self._compute(read, len(body))

    async def _compute(self, compute: Callable[[], T], size_bytes: int) -> T:
        """In another thread if it takes long."""
        if size_bytes <= SMALL_BODY_BYTES or self._scheduler is None:
            return compute()
        return await self._scheduler.in_worker_thread(
            Computation(compute), name="forward a large request"
        )

    def _limit_s(self, request: Any) -> float:
        timeout_ms: int | None = getattr(request, "timeout_ms", None)
        if timeout_ms is None:
            return self._timeout_s
        return min(self._timeout_s, max(TIMEOUT_MIN_S, timeout_ms / 1000))

    # -- one attempt -----------------------------------------------------------------------

    async def _attempt(
        self, context: Context, forwarded: "_ForwardedRequest", deadline_s: float
    ) -> None:
        """Answer, or raise NotController, RpcError, _Failed, RequestRefused."""
        route = self._route()
        if route.is_local:
            data = await serve_locally(self._dispatch, context, memoryview(forwarded.body))
            await self._wait_for_metadata(context, forwarded.request, data)
            data = await self._compute(partial(forwarded.complete, context, data), len(data))
            # It was counted in the metrics when it was served.
            context.peer.send_answer(context.facts.number, [_SIZE.pack(len(data)), data])
        elif route.address is None:
            raise _Failed
        else:
            data = await self._pass_on(context, route, route.address, forwarded.body, deadline_s)
            await self._wait_for_metadata(context, forwarded.request, data)
            data = await self._compute(partial(forwarded.complete, context, data), len(data))
            context.answer_frame([_SIZE.pack(len(data)), data], len(data))

    async def _wait_for_metadata(self, context: Context, request: Any, data: bytes) -> None:
        if self._metadata_barrier is not None and len(data) <= SMALL_BODY_BYTES:
            await self._metadata_barrier(request, data, context.version)

    async def _pass_on(
        self, context: Context, route: Route, address: Address, body: bytes, deadline_s: float
    ) -> bytes:
        work = self._send(context, address, body, deadline_s)
        sending = asyncio.get_running_loop().create_task(work, name="pass a request on")
        try:
            # Stop waiting for a controller that hangs as soon as there is another.
            while not sending.done() and self._route() == route and self._now_s() < deadline_s:
                await asyncio.wait([sending], timeout=CHECK_INTERVAL_S)
            if not sending.done():
                raise _Failed
            return sending.result()
        finally:
            if not sending.done():
                sending.cancel()
                await asyncio.wait([sending])

    async def _send(
        self, context: Context, address: Address, body: bytes, deadline_s: float
    ) -> bytes:
        facts = context.facts
        key = ApiKey(facts.api_key)
        header = encode_request_header(key, facts.version, facts.correlation_id, facts.client_id)
        connection = await self._connections.get(address)
        answer: EnvelopeResponse = await connection.send(
            EnvelopeRequest(
                request_data=header + body,
                request_principal=None,
                client_host_address=context.peer.client_host.encode(),
            ),
            timeout_s=max(CHECK_INTERVAL_S, deadline_s - self._now_s()),
        )
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            raise NotController
        if answer.error_code or answer.response_data is None:
            code = ErrorCode(answer.error_code).name
            raise RequestRefused(f"the controller refused {key.name}: {code}")
        return bytes(answer.response_data)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


async def serve_locally(dispatch: Dispatch, context: Context, body: memoryview) -> bytes:
    """This broker's answer; raises NotController if it was deposed, RequestRefused."""
    peer = context.peer
    collecting = CollectingPeer(
        listener=peer.listener, client_host=peer.client_host, local_host=peer.local_host
    )
    dispatch.serve(collecting, context.facts, body)
    return await collecting.response
