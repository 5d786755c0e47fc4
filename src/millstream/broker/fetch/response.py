"""The Fetch answer as bytes and file ranges, written without message objects in between.

One `struct` per partition; records are not touched: they stay a range of their segment's file.
"""

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.broker.fetch.cursors import Found
from millstream.broker.fetch.request import FIRST_FLEXIBLE, FIRST_WITH_SESSIONS, TopicKey
from millstream.broker.fetch.sessions import RoundAnswer
from millstream.broker.requests.advertised_brokers import LeaderHint
from millstream.broker.requests.context import AnswerPart
from millstream.kernels.fetch import answer_frame
from millstream.model.limits import KIB
from millstream.runtime.scheduler import StepGenerator, YieldCounter, chunked, run_blocking
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.wire.primitives import (
    write_compact_length,
    write_compact_string,
    write_nullable_compact_string,
    write_unsigned_varint,
)

_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_PREFERRED_REPLICA: Final = 11
_FIRST_WITH_ENDPOINTS: Final = 16

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_TOP: Final = Struct(">ihi")
_ABORTED: Final = Struct(">qq")
_ABORTED_FLEXIBLE: Final = Struct(">qqB")
_FACTS: Final = Struct(">ihqqq")
_OLD_FACTS: Final = Struct(">ihqq")
_DIVERGING: Final = Struct(">iq")
_LEADER: Final = Struct(">ii")

_NULL: Final = b"\xff\xff\xff\xff"

PART_BYTES: Final = 256 * KIB


Hints = dict[tuple[TopicKey, int], LeaderHint]
NO_HINTS: Final[Hints] = {}


def encode(version: int, answer: RoundAnswer, hints: Hints = NO_HINTS) -> list[AnswerPart]:
    """The body: bytes, and a range wherever there are records."""
    return run_blocking(encode_steps(version, answer, hints))


def encode_steps(
    version: int, answer: RoundAnswer, hints: Hints
) -> StepGenerator[list[AnswerPart]]:
    """The same, in steps."""
    writer = _Writer(version, hints)
    topics: deque[tuple[TopicKey, list[Found]]] = deque()
    for chunk in chunked(answer.found):
        _add_by_topic(topics, chunk)
        yield None
    writer.top(answer, len(topics))
    pace = YieldCounter()
    while topics:
        topic, partitions = topics.popleft()  # very many would take long to free at the end
        writer.topic(topic, len(partitions))
        for one in partitions:
            writer.partition(one)
            if pace.is_due():
                writer.cut()
                yield None
        writer.topic_end()
    writer.end()
    return writer.parts


def encode_frame(
    version: int, correlation_id: int, answer: RoundAnswer
) -> tuple[list[AnswerPart], int] | None:
    """The whole frame and its size without the first four bytes; None: use `encode`."""
    if any(one.preferred_replica >= 0 for one in answer.found):
        return None
    return answer_frame(version, correlation_id, answer.error, answer.session_id, answer.found)


def _add_by_topic(groups: deque[tuple[TopicKey, list[Found]]], found: Sequence[Found]) -> None:
    """Neighbours of one topic together, in order: the order says what was read first."""
    last = groups[-1][0] if groups else None
    for one in found:
        topic = one.cursor.key[0]
        if topic != last:
            last = topic
            groups.append((topic, []))
        groups[-1][1].append(one)


class _Writer:
    """Bytes so far, and the parts before them."""

    __slots__ = ("_hints", "_is_flexible", "_nodes", "_out", "_version", "parts")

    def __init__(self, version: int, hints: Hints) -> None:
        self.parts: list[AnswerPart] = []
        self._out = bytearray()
        self._version = version
        self._is_flexible = version >= FIRST_FLEXIBLE
        self._hints = hints
        self._nodes: dict[int, LeaderHint] = {}
        """Where the leaders of the hints are."""

    def _count(self, count: int) -> None:
        if self._is_flexible:
            write_compact_length(self._out, count)
        else:
            self._out += _INT32.pack(count)

    def top(self, answer: RoundAnswer, topic_count: int) -> None:
        if self._version >= FIRST_WITH_SESSIONS:
            self._out += _TOP.pack(0, answer.error, answer.session_id)
        else:
            self._out += _INT32.pack(0)
        self._count(topic_count)

    def topic(self, topic: TopicKey, partition_count: int) -> None:
        out = self._out
        if isinstance(topic, bytes):
            out += topic
        else:
            raw = topic.encode()
            if self._is_flexible:
                write_compact_length(out, len(raw))
            else:
                out += _INT16.pack(len(raw))
            out += raw
        self._count(partition_count)

    def topic_end(self) -> None:
        if self._is_flexible:
            self._out.append(0)

    def partition(self, one: Found) -> None:
        out, version = self._out, self._version
        index = one.cursor.key[1]
        if version >= _FIRST_WITH_LOG_START:
            out += _FACTS.pack(
                index, one.error, one.high_watermark, one.last_stable_offset, one.log_start
            )
        else:
            out += _OLD_FACTS.pack(index, one.error, one.high_watermark, one.last_stable_offset)
        self._aborted(one.aborted)
        if version >= _FIRST_WITH_PREFERRED_REPLICA:
            out += _INT32.pack(one.preferred_replica)
        size = one.data.size_bytes
        self._count(size)
        if one.data.raw is not None:
            out += one.data.raw
        elif size and one.data.file is not None:
            self.parts += (bytes(out), one.data)
            self._out = out = bytearray()
        if self._is_flexible:
            self._partition_tags(one)

    def _aborted(self, aborted: Sequence[AbortedTransaction] | None) -> None:
        out = self._out
        if aborted is None:
            out += b"\0" if self._is_flexible else _NULL
            return
        self._count(len(aborted))
        for transaction in aborted:
            if self._is_flexible:
                out += _ABORTED_FLEXIBLE.pack(transaction.producer_id, transaction.first_offset, 0)
            else:
                out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)

    def _partition_tags(self, one: Found) -> None:
        out = self._out
        hint = self._hints.get(one.cursor.key) if self._hints else None
        if one.diverging is None and hint is None:
            out.append(0)
            return
        out.append((one.diverging is not None) + (hint is not None))
        if one.diverging is not None:
            out += b"\0"
            out.append(_DIVERGING.size + 1)
            out += _DIVERGING.pack(*one.diverging)
            out.append(0)
        if hint is not None:
            out += b"\1"
            out.append(_LEADER.size + 1)
            out += _LEADER.pack(hint.leader_id, hint.leader_epoch)
            out.append(0)
            if hint.host is not None:
                self._nodes[hint.leader_id] = hint

    def cut(self) -> None:
        """Begin a new part before the last one is so large that copying it takes long."""
        if len(self._out) >= PART_BYTES:
            self.parts.append(bytes(self._out))
            self._out = bytearray()

    def end(self) -> None:
        """The last tagged fields: where the leaders of the hints are."""
        out = self._out
        if self._is_flexible:
            if self._nodes and self._version >= _FIRST_WITH_ENDPOINTS:
                value = _encode_nodes(self._nodes)
                out += b"\1\0"
                write_unsigned_varint(out, len(value))
                out += value
            else:
                out.append(0)
        if out:
            self.parts.append(bytes(out))


def _encode_nodes(nodes: dict[int, LeaderHint]) -> bytes:
    out = bytearray()
    write_compact_length(out, len(nodes))
    for node_id, hint in nodes.items():
        out += _INT32.pack(node_id)
        write_compact_string(out, hint.host or "")
        out += _INT32.pack(hint.port)
        write_nullable_compact_string(out, hint.rack)
        out.append(0)
    return bytes(out)
