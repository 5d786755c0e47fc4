"""A Fetch of thousands of partitions: the same work as for any other, in steps.

Each partition takes some microseconds to look up, to read and to write into the answer. The 200,000
that a request may name, or the 50,000 of a session, would keep all other clients waiting for long.

Between two steps anything may happen. Records are pinned in the step that reads them, because a
segment may leave its log. A partition is waited for from that step on, because it may get records,
or another leader, before the last one is read. And its replica is found again in the step that
reads it, if any partition changed its role since the request began.
"""

from typing import Any, Final

from millstream.broker.fetch.answer import FIRST_WITH_HINTS, add_hint, count_sent
from millstream.broker.fetch.delayed import DelayedFetch, parked_bytes
from millstream.broker.fetch.gathered import Gathered
from millstream.broker.fetch.read import FetchReader, forget_replicas, reader_of
from millstream.broker.fetch.request import FetchParams
from millstream.broker.fetch.response import Hints, encode_steps
from millstream.broker.requests.answer_parts import release
from millstream.broker.requests.context import Context
from millstream.runtime.scheduler import StepGenerator, chunked

PARTITIONS_AT_ONCE_MAX: Final = 1_000
"""Named or forgotten by a request, or due in its session, that are served at once: some
milliseconds' worth."""

ANSWERED_CURSOR_BYTES: Final = 600
"""What a partition takes while it is read and answered, beyond what it takes while it waits."""


def large_request_steps(
    context: Context, params: FetchParams, bytes_max: int
) -> StepGenerator[None]:
    """Serve a request that names very many partitions."""
    services = context.services
    round_ = yield from services.fetch_sessions.begin_steps(params)
    yield from LargeFetch(context, reader_of(services, round_, bytes_max)).steps()


class LargeFetch:
    """One request, whose round has begun in this moment."""

    def __init__(self, context: Context, reader: FetchReader) -> None:
        self._context = context
        self._reader = reader
        self._partitions = context.services.partitions
        self._generation = self._partitions.generation

    def steps(self) -> StepGenerator[None]:
        """Read, then answer or wait for more."""
        gathered = Gathered(self._reader)
        wait = _Wait(self._context, self._reader, self.answer_late)
        try:
            yield from self._read_steps(gathered, wait)
            if not gathered.wait_ms:
                wait.leave()
                yield from self._answer_steps(gathered)
                return
            yield from gathered.drop_steps()
            if wait.is_due:
                wait.leave()
                yield from self.late_steps()
            else:
                wait.start(max_wait_ms=gathered.wait_ms)
        finally:
            if not wait.is_started:
                wait.leave()
            release(gathered.pinned)

    def late_steps(self) -> StepGenerator[None]:
        """Read and answer: it has waited, or need not."""
        gathered = Gathered(self._reader)
        try:
            yield from self._read_steps(gathered)
            yield from self._answer_steps(gathered)
        finally:
            release(gathered.pinned)

    def answer_late(self, context: Context, reader: FetchReader) -> None:
        """Read and answer in steps: it has waited long enough."""
        context.services.responder.go_on(
            context,
            self.late_steps(),
            kept_bytes=context.facts.bytes_in + parked_bytes(reader.round),
            more_bytes=len(reader.round.cursors) * ANSWERED_CURSOR_BYTES,
        )

    def _read_steps(self, gathered: Gathered, wait: "_Wait | None" = None) -> StepGenerator[None]:
        reader = self._reader
        for chunk in chunked(reader.begin_chunks()):
            if self._partitions.generation != self._generation:
                forget_replicas(chunk)
            found = reader.pin(reader.read(reader.due(chunk)))
            gathered.add(found)
            if wait is not None and gathered.wait_ms:
                wait.join(chunk, found)
            yield None

    def _answer_steps(self, gathered: Gathered) -> StepGenerator[None]:
        context, reader = self._context, self._reader
        sessions, version = context.services.fetch_sessions, context.version
        answer = yield from sessions.finish_steps(
            reader.round, gathered.found, gathered.unknown_count
        )
        error_count = 1 if answer.error else 0
        hints: Hints = {}
        for chunk in chunked(answer.found):
            chunk_errors = count_sent(reader, chunk)
            error_count += chunk_errors
            if chunk_errors and version >= FIRST_WITH_HINTS:
                for one in chunk:
                    add_hint(context, hints, one)
            yield None
        parts = yield from encode_steps(version, answer, hints)
        if answer.found:
            gathered.pinned.clear()  # they are the connection's now
        context.answer_parts(parts, error_count=error_count)
        yield from gathered.drop_steps()
        if not answer.session_id:
            yield from reader.round.drop_steps()


class _Wait(DelayedFetch):
    """Joins its partitions while they are read, and so misses nothing between two steps."""

    __slots__ = ("is_due", "is_started")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_started = self.is_due = False

    def start(self, *, max_wait_ms: int) -> None:
        self.is_started = True
        super().start(max_wait_ms=max_wait_ms)

    def progressed(self, mark: Any) -> None:
        if self.is_started:
            super().progressed(mark)
        elif not self.is_due:
            self.is_due = self._is_enough(mark)
