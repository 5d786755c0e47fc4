"""A Fetch of thousands of partitions: the same work as for any other, in steps.

Each partition takes some microseconds to look up, to read and to write into the answer. The 200,000
that a request may name would keep all other clients waiting for a second.

Records are pinned in the step that reads them: between two steps a segment may leave its log.
"""

from typing import Final

from millstream.broker.fetch.answer import answer_steps, wait_ms_of
from millstream.broker.fetch.delayed import DelayedFetch
from millstream.broker.fetch.read import FetchReader, reader_of
from millstream.broker.fetch.request import FetchParams
from millstream.broker.fetch.sessions import Found
from millstream.broker.requests.answer_parts import release
from millstream.broker.requests.context import Context
from millstream.runtime.scheduler import StepGenerator, chunked

PARTITIONS_AT_ONCE_MAX: Final = 1_000
"""Named by a request that is served at once: some milliseconds' worth."""


class LargeFetch:
    """One request."""

    def __init__(self, context: Context, params: FetchParams, bytes_max: int) -> None:
        self._context = context
        self._params = params
        self._bytes_max = bytes_max

    def steps(self) -> StepGenerator[None]:
        """Read, then answer or wait for more."""
        services = self._context.services
        round_ = yield from services.fetch_sessions.begin_steps(self._params)
        reader = reader_of(services, round_, self._bytes_max)
        found = yield from _read_steps(reader)
        wait_ms = wait_ms_of(reader, found)
        if wait_ms:
            release([one.data for one in found])
            DelayedFetch(self._context, reader, _go_on).start(found, max_wait_ms=wait_ms)
        else:
            yield from answer_steps(self._context, reader, found)


def _go_on(context: Context, reader: FetchReader) -> None:
    """It has waited long enough."""
    context.services.responder.go_on(context, _late_steps(context, reader))


def _late_steps(context: Context, reader: FetchReader) -> StepGenerator[None]:
    found = yield from _read_steps(reader)
    yield from answer_steps(context, reader, found)


def _read_steps(reader: FetchReader) -> StepGenerator[list[Found]]:
    """All partitions, with their files pinned."""
    found: list[Found] = []
    is_whole = False
    try:
        for chunk in chunked(reader.begin()):
            found += reader.pin([reader.read_next(cursor) for cursor in chunk])
            yield None
        is_whole = True
    finally:
        if not is_whole:
            release([one.data for one in found])
    return found
