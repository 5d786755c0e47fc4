"""From a request's bytes to its handler, and from the handler's answer to a frame.

What a client sends can fail in three ways. Bytes that are no request of a version we serve
close the connection, as Kafka does: there is no answer the client could read. An operating error
is answered with its code. Anything else is a fault of ours: it is logged with its trace and
answered as such, except to a producer, whose connection is closed, because a producer takes an
unknown error for a lost batch, starts a new epoch and sends the records a second time.

Most requests are served at once. One that is large, or has a large answer, must not keep other
clients waiting: it is decoded in another thread, its handler works in steps
(`runtime/scheduler.py`), its answer is encoded in another thread. Its connection is not read
meanwhile, so that later requests do not overtake it.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from struct import Struct
from types import GeneratorType
from typing import Any, Final

from millstream.broker.requests import registry
from millstream.broker.requests.answer_parts import release, size_of
from millstream.broker.requests.between_brokers import refusal
from millstream.broker.requests.context import AnswerPart, Context, Peer, RequestFacts
from millstream.broker.requests.error_codes import code_of
from millstream.broker.requests.registry import SERVED, Handler
from millstream.broker.requests.request_memory import (
    REQUEST_BYTES_MIN,
    cost_of,
    cost_of_items,
    next_items_max,
)
from millstream.broker.requests.response_collector import CollectingPeer
from millstream.broker.requests.services import Services
from millstream.model.errors import OperatingError, without_frames
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX, WORKER_REQUESTS_MAX
from millstream.observe.logs import get_logger
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import (
    Computation,
    CooperativeScheduler,
    StepGenerator,
    UnfinishedSteps,
    run_blocking,
    run_first_step,
)
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import response_header_end
from millstream.wire.primitives import MalformedFrame
from millstream.wire.values import TooManyItems, read_within

log = get_logger("millstream.broker.requests.dispatch")

_FRONT: Final = Struct(">ii")
"""Size and correlation id: what every answer begins with."""
_HEADER_BYTES: Final = 4
"""Of the correlation id, which the size counts."""

ANSWER_BYTES_MAX: Final = 2**31 - 1
"""The size of a frame is a signed 32-bit number."""

SMALL_BODY_BYTES: Final = 4096
"""Requests up to this size are decoded without counting their items."""

ITEMS_AT_ONCE_MAX: Final = 1_000
"""Structs and strings that are decoded or encoded on the loop: two milliseconds' worth. More of
them is another thread's work, which costs a tenth of a millisecond to hand over."""

Spawn = Callable[[Coroutine[Any, Any, None], str], None]
Work = Callable[[], Coroutine[Any, Any, None]]
Forward = Callable[[Peer, RequestFacts, memoryview], None]


class Dispatch:
    """One per broker. All methods run on the loop's thread."""

    def __init__(
        self,
        services: Callable[[], Services],
        spawn: Spawn,
        scheduler: CooperativeScheduler | None = None,
        *,
        forwarders: Mapping[int, Forward] | None = None,
    ) -> None:
        """Without `scheduler` everything is done at once: no other client waits.

        `forwarders` has the APIs whose requests this broker passes on instead of serving them: in a
        cluster, the controller's.
        """
        self._services = services
        self._spawn = spawn
        self._scheduler = scheduler
        self._handlers: dict[int, Handler] = {}
        self._forwarders = forwarders or {}
        self._large_produces = 0

    @property
    def decompressed_bytes(self) -> int:
        """What batches that are being checked in worker threads may take."""
        return min(self._large_produces, WORKER_REQUESTS_MAX) * DECOMPRESSED_BATCH_BYTES_MAX

    # -- requests --------------------------------------------------------------------------

    def handle(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        """Serve or forward one request; its answer follows now or later."""
        if not peer.is_admitted and not peer.admit(facts.api_key):
            return  # beyond the limit of connections; it is closed
        if len(body) > REQUEST_BYTES_MIN:
            go_on = partial(self._pass_on, peer, facts, body)
            cost = self._cost_of(facts, body)
            peer.charge(facts.number, kept_bytes=len(body), more_bytes=cost, go_on=go_on)
        else:
            self._pass_on(peer, facts, body)

    def _cost_of(self, facts: RequestFacts, body: memoryview) -> int:
        cost = cost_of(facts.api_key, len(body))
        if facts.api_key in self._forwarders or facts.api_key == ApiKey.ENVELOPE:
            cost += cost_of_items(len(body))
        return cost

    def _pass_on(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        forward = self._forwarders.get(facts.api_key)
        if forward is not None:
            forward(peer, facts, body)
        else:
            self.serve(peer, facts, body)

    def serve(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        """Serve one request on this broker."""
        handler = self._handlers.get(facts.api_key) or self._load(facts.api_key)
        if handler is None:
            peer.close(f"unknown api key {facts.api_key}")
            return
        context = Context(self._services(), peer, facts)
        is_for_others = handler.is_for_brokers and peer.proven_broker is None
        if is_for_others or facts.version not in handler.versions:
            self._refuse_undecoded(context, handler)
            return
        try:
            if len(body) <= SMALL_BODY_BYTES or self._scheduler is None:
                request = handler.decode(body, facts.version)
            else:
                read = partial(handler.decode, body, facts.version)
                request = read_within(ITEMS_AT_ONCE_MAX, read)
        except TooManyItems as error:
            if self._scheduler is None:
                self._close_malformed(context, error)
            else:
                self._decode_later(context, handler, body, ITEMS_AT_ONCE_MAX, error)
            return
        except MalformedFrame as error:
            self._close_malformed(context, error)
            return
        try:
            answer = handler.handle(context, request)
            if isinstance(answer, GeneratorType):
                answer = (
                    run_first_step(answer) if self._scheduler is not None else run_blocking(answer)
                )
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            self._fail(context, handler, request, error)
            return
        if answer is None:
            return  # answered, or will be
        if isinstance(answer, UnfinishedSteps) and self._scheduler is not None:
            work = partial(self._take_steps, context, handler, request, answer, self._scheduler)
            self._serve_muted(context, work)
        elif inspect.iscoroutine(answer):
            self._await(context, handler, request, answer)
        else:
            self.answer(context, answer)

    def _await(
        self, context: Context, handler: Handler, request: Any, work: Coroutine[Any, Any, Any]
    ) -> None:
        name = f"{_name_of(context)} of connection {context.peer.connection_id}"
        if context.facts.bytes_in > REQUEST_BYTES_MIN:
            context.peer.hold(context.facts.number)
            finishing = self._finish_held(context, handler, request, work)
        else:
            finishing = self._finish(context, handler, request, work)
        self._spawn(finishing, name)
        if inspect.getcoroutinestate(finishing) == inspect.CORO_CLOSED:
            work.close()  # it was never started
            context.peer.close("the broker is stopping")

    async def _finish_held(
        self, context: Context, handler: Handler, request: Any, work: Coroutine[Any, Any, Any]
    ) -> None:
        """It stays charged until the work has ended, whatever becomes of its client."""
        try:
            await self._finish(context, handler, request, work)
        finally:
            context.peer.let_go(context.facts.number)

    def _serve_charged(
        self, context: Context, work: Work, *, kept_bytes: int, more_bytes: int
    ) -> None:
        """As `_serve_muted`, as soon as there is so much memory, for a request that was served
        before.
        """
        context.peer.charge(
            context.facts.number,
            kept_bytes=kept_bytes,
            more_bytes=more_bytes,
            go_on=partial(self._serve_muted, context, work),
            had_turn=True,
        )

    def _serve_muted(self, context: Context, work: Work) -> None:
        """Serve a request concurrently with others, while its connection is muted."""
        peer, number = context.peer, context.facts.number
        peer.mute()
        peer.hold(number)
        name = f"{_name_of(context)} of connection {peer.connection_id}"
        self._spawn(self._run_muted(peer, number, work), name)

    async def _run_muted(self, peer: Peer, number: int, work: Work) -> None:
        try:
            await work()
        finally:
            peer.let_go(number)
            peer.unmute()

    async def _take_steps(
        self,
        context: Context,
        handler: Handler,
        request: Any,
        unfinished: UnfinishedSteps,
        scheduler: CooperativeScheduler,
    ) -> None:
        work = scheduler.resume(unfinished, name=_name_of(context))
        is_produce = context.facts.api_key == ApiKey.PRODUCE
        self._large_produces += is_produce
        try:
            await self._finish(context, handler, request, work)
        finally:
            self._large_produces -= is_produce

    def go_on(
        self, context: Context, steps: StepGenerator[None], *, kept_bytes: int, more_bytes: int
    ) -> None:
        """Serve the rest of a request that has waited, in steps; they end with its answer. It has
        kept so many bytes, and takes more now.
        """
        if self._scheduler is None:
            run_blocking(steps)
        else:
            work = partial(self._end, context, steps, self._scheduler)
            self._serve_charged(context, work, kept_bytes=kept_bytes, more_bytes=more_bytes)

    async def _end(
        self, context: Context, steps: StepGenerator[None], scheduler: CooperativeScheduler
    ) -> None:
        try:
            await scheduler.run(steps, name=_name_of(context))
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            end_if_fatal(error)
            self._log_fault(context, "request failed", version=context.version, error=error)
            context.peer.close(f"{_name_of(context)} failed: {error!r}")

    def _decode_later(
        self,
        context: Context,
        handler: Handler,
        body: memoryview,
        items_max: int,
        error: TooManyItems,
    ) -> None:
        """Decode it in another thread, as soon as there is memory for more items than so many.

        What its bytes could be at the worst is not charged at once: most are records or names.
        """
        size = len(body)
        allowed = next_items_max(size, items_max, context.peer.charged_max(size))
        if not allowed or self._scheduler is None:
            self._close_malformed(context, error)
            return
        cost = max(cost_of(context.facts.api_key, size), cost_of_items(size, allowed))
        work = partial(
            self._decode_in_thread, context, handler, body, allowed, scheduler=self._scheduler
        )
        self._serve_charged(context, work, kept_bytes=size, more_bytes=cost)

    async def _decode_in_thread(
        self,
        context: Context,
        handler: Handler,
        body: memoryview,
        items_max: int,
        *,
        scheduler: CooperativeScheduler,
    ) -> None:
        decode = partial(handler.decode, body, context.version)
        read = Computation(read_within, items_max, decode)
        try:
            request = await scheduler.in_worker_thread(read, name=f"decode {_name_of(context)}")
        except TooManyItems as error:
            self._decode_later(context, handler, body, items_max, error)
            return
        except MalformedFrame as error:
            self._close_malformed(context, error)
            return
        try:
            answer = handler.handle(context, request)
            if isinstance(answer, GeneratorType):
                answer = scheduler.run(answer, name=_name_of(context))
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            self._fail(context, handler, request, error)
            return
        if inspect.iscoroutine(answer):
            await self._finish(context, handler, request, answer)
        elif answer is not None:
            await self._answer_any_size(context, answer)

    async def _finish(
        self, context: Context, handler: Handler, request: Any, work: Coroutine[Any, Any, Any]
    ) -> None:
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request
            await self.refuse(context, handler, request, error)
        else:
            if answer is not None:
                await self._answer_any_size(context, answer)

    def _close_malformed(self, context: Context, error: MalformedFrame) -> None:
        version = context.version
        context.peer.close(f"malformed {_name_of(context)} request of version {version}: {error}")
        without_frames(error)

    def _load(self, api_key: int) -> Handler | None:
        if api_key not in SERVED:
            return None
        handler = self._handlers[api_key] = registry.load(ApiKey(api_key))
        return handler

    def _refuse_undecoded(self, context: Context, handler: Handler) -> None:
        if context.facts.version in handler.versions:
            self._fail(context, handler, None, refusal(context))
        else:
            self._refuse_version(context)

    def _refuse_version(self, context: Context) -> None:
        """Only ApiVersions has an answer that a client of any version can read (KIP-511)."""
        facts = context.facts
        if facts.api_key == ApiKey.API_VERSIONS:
            from millstream.broker.requests.announced import unsupported_version

            self._send(context, [unsupported_version().encode(0)], version=0, error_count=1)
            return
        name = ApiKey(facts.api_key).name
        context.peer.close(f"version {facts.version} of {name} is not served")

    def _fail(self, context: Context, handler: Handler, request: Any, error: Exception) -> None:
        code = self._code_of(context, error)
        if code is None:
            return
        try:
            self.answer(context, handler.failed(request, code, context.version))
        except Exception as second:  # noqa: BLE001 - no answer is possible any more
            end_if_fatal(second)
            self._give_up(context, error, second)

    async def refuse(
        self, context: Context, handler: Handler, request: Any, error: Exception
    ) -> None:
        """`_fail` for a request that may be large, and its answer, too."""
        code = self._code_of(context, error)
        if code is None:
            return
        try:
            make = Computation(handler.failed, request, code, context.version)
            if self._scheduler is not None and _items_left(request, ITEMS_AT_ONCE_MAX) < 0:
                name = f"refuse {_name_of(context)}"
                await self._answer_any_size(
                    context, await self._scheduler.in_worker_thread(make, name=name)
                )
            else:
                self.answer(context, make())
        except Exception as second:  # noqa: BLE001 - as above
            end_if_fatal(second)
            self._give_up(context, error, second)

    def _code_of(self, context: Context, error: Exception) -> ErrorCode | None:
        """The code to answer an error with; None when the connection is closed instead."""
        code = code_of(error)
        facts, name = context.facts, _name_of(context)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            self._log_fault(context, "request failed", version=facts.version, error=error)
            if facts.api_key == ApiKey.PRODUCE or not isinstance(error, Exception):
                context.peer.close(f"{name} failed: {error!r}")
                return None
        elif not isinstance(error, OperatingError):
            host = context.peer.client_host
            context.services.client_log.warning(
                log, "request refused", client=host, api=name, error=error
            )
        if code is ErrorCode.NOT_CONTROLLER and isinstance(context.peer, CollectingPeer):
            context.peer.note_not_controller()
        without_frames(error)  # it may be in what they keep: the request would outlive its answer
        return code

    def _give_up(self, context: Context, error: Exception, second: Exception) -> None:
        self._log_fault(context, "error response could not be sent", error=second)
        context.peer.close(f"{_name_of(context)} failed: {error!r}")

    def _log_fault(self, context: Context, message: str, **values: object) -> None:
        """As often as the client sends such a request, if it were not limited."""
        client_log, host = context.services.client_log, context.peer.client_host
        client_log.error(log, message, client=host, api=_name_of(context), **values)

    # -- answers ---------------------------------------------------------------------------

    def answer(self, context: Context, response: Any) -> None:
        """Send a response message."""
        version = context.facts.version
        body = response.encode(version)
        self._send(context, [body], version=version, error_count=_errors_in(response))

    async def _answer_any_size(self, context: Context, response: Any) -> None:
        """As `answer`, with another thread where there is much to encode."""
        if self._scheduler is None or _items_left(response, ITEMS_AT_ONCE_MAX) >= 0:
            self.answer(context, response)
            return
        version = context.facts.version

        def encode() -> tuple[bytes, int]:
            return response.encode(version), _errors_in(response)

        name = f"encode {_name_of(context)}"
        body, error_count = await self._scheduler.in_worker_thread(Computation(encode), name=name)
        self._send(context, [body], version=version, error_count=error_count)

    def answer_parts(
        self, context: Context, body: Sequence[AnswerPart], *, error_count: int
    ) -> None:
        """Send a body of bytes and file ranges."""
        self._send(context, body, version=context.facts.version, error_count=error_count)

    def answer_frame(
        self, context: Context, parts: Sequence[AnswerPart], size_bytes: int, *, error_count: int
    ) -> None:
        """Send a complete frame."""
        self._observe(context, size_bytes + 4, error_count)
        context.peer.send_answer(context.facts.number, parts)

    def answer_nothing(self, context: Context) -> None:
        """End a request that has no response."""
        self._observe(context, 0, 0)
        context.peer.send_nothing(context.facts.number)

    def _send(
        self, context: Context, body: Sequence[AnswerPart], *, version: int, error_count: int
    ) -> None:
        facts = context.facts
        header_end = response_header_end(facts.api_key, version)
        size = _HEADER_BYTES + len(header_end)
        for part in body:
            size += size_of(part)
        if size >= ANSWER_BYTES_MAX:  # a client can request that, so it is no bug of ours
            release(body)
            context.peer.close(f"an answer of {size} bytes does not fit a frame")
            return
        self._observe(context, size + 4, error_count)
        front = _FRONT.pack(size, facts.correlation_id) + header_end
        first = body[0] if body else b""
        parts = [front + first, *body[1:]] if isinstance(first, bytes) else [front, *body]
        context.peer.send_answer(facts.number, parts)

    def _observe(self, context: Context, bytes_out: int, error_count: int) -> None:
        facts, services = context.facts, context.services
        latency_us = int(services.clock.monotonic_s() * 1e6) - facts.received_us
        services.metrics.apis.observe_many(
            facts.api_key, 1, latency_us, facts.bytes_in, bytes_out, error_count
        )


def _name_of(context: Context) -> str:
    return ApiKey(context.facts.api_key).name


def _items_left(message: Any, left: int) -> int:
    """`left` minus the items of the message; negative as soon as it has more."""
    for name in message.__slots__:
        value = getattr(message, name, None)
        if type(value) is not list or not value:
            continue
        left -= len(value)
        if left < 0:
            return left
        if hasattr(value[0], "__slots__"):
            for item in value:
                left = _items_left(item, left)
                if left < 0:
                    return left
    return left


def _errors_in(response: Any) -> int:
    """The number of errors: of the response as a whole, or of its items."""
    if getattr(response, "error_code", 0):
        return 1
    count = 0
    for name in response.__slots__:
        value = getattr(response, name, None)
        if type(value) is list and value and hasattr(value[0], "__slots__"):
            count += sum(map(_errors_in, value))
    return count
