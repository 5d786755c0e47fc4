"""What a Fetch is answered with, and whether it waits before that."""

import math
from collections.abc import Sequence
from typing import Final

from millstream.broker.fetch.cursors import Found
from millstream.broker.fetch.delayed import is_log_start_unsent
from millstream.broker.fetch.read import FetchReader
from millstream.broker.fetch.response import NO_HINTS, Hints, encode, encode_frame
from millstream.broker.fetch.sessions import RoundAnswer
from millstream.broker.requests.advertised_brokers import leader_hint
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode

HELD_BACK_MS_MIN: Final = 20
"""Between two answers to a follower that catches up and has used up its rate limit."""

FIRST_WITH_HINTS: Final = 16
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def wait_ms_of(reader: FetchReader, found: Sequence[Found]) -> int:
    """How long the request waits for more than was found; 0: it is answered now."""
    wait_ms = reader.round.params.max_wait_ms
    if wait_ms <= 0 or reader.has_older_segment:
        return 0
    size = unknown_count = 0
    for one in found:
        if one.is_unknown:
            unknown_count += 1
        elif one.error or one.diverging is not None or one.preferred_replica >= 0:
            return 0
        if reader.is_follower and is_log_start_unsent(one.cursor, one.log_start):
            return 0
        size += one.data.size_bytes
    if size >= reader.min_bytes or unknown_count >= len(reader.round.cursors):
        return 0  # enough, or none of the partitions exists
    if reader.throttle_wait_s:
        wait_ms = min(wait_ms, max(HELD_BACK_MS_MIN, math.ceil(reader.throttle_wait_s * 1000)))
    return wait_ms


def answer(context: Context, reader: FetchReader, found: list[Found]) -> None:
    """Send what was found, or what of it changed in the session.

    The files of the ranges are pinned here; the connection unpins them when they are sent or
    dropped.
    """
    round_answer = context.services.fetch_sessions.finish(reader.round, found)
    pinned = reader.pin(round_answer.found)
    if pinned is not round_answer.found:
        round_answer = round_answer._replace(found=pinned)
    error_count = 1 if round_answer.error else count_sent(reader, round_answer.found)
    facts = context.facts
    hints = NO_HINTS
    if error_count and facts.version >= FIRST_WITH_HINTS:
        hints = _hints(context, round_answer)
    frame = encode_frame(facts.version, facts.correlation_id, round_answer) if not hints else None
    if frame is not None:
        context.answer_frame(*frame, error_count=error_count)
    else:
        context.answer_parts(encode(facts.version, round_answer, hints), error_count=error_count)


def count_sent(reader: FetchReader, found: Sequence[Found]) -> int:
    """Count the records that go out, and return the number of errors."""
    error_count = 0
    for one in found:
        if one.error:
            error_count += 1
        elif one.cursor.replica is not None:
            reader.count_out(one.cursor.replica, one.data.size_bytes)
    return error_count


def _hints(context: Context, round_answer: RoundAnswer) -> Hints:
    hints: Hints = {}
    for one in round_answer.found:
        add_hint(context, hints, one)
    return hints


def add_hint(context: Context, hints: Hints, one: Found) -> None:
    """Where the leader is, for a client that asked another broker."""
    cursor = one.cursor
    topic, index = cursor.key
    name = topic if isinstance(topic, str) else cursor.name
    if one.error in _HINTED and name is not None:
        hint = leader_hint(context, name, index)
        if hint is not None:
            hints[cursor.key] = hint
