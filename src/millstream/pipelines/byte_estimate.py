"""How many bytes an offset has, per partition: what a limit in bytes is turned into offsets with.

No request tells the size of an offset range, so this is an estimate, and `maxBytesPerTrigger` aims
rather than promises. Bytes are those that travel: record batches as stored, compressed. Two sources
feed it: sizes of whole logs (DescribeLogDirs), which are there from the first batch, and spans that
were really fetched, which know the place in the log and win. Spark gives tasks no way to tell the
driver what they read, so fetched spans come from samples that the driver takes where it reads next.

Everything is whole numbers: equal observations give equal decisions on every machine. A replay does
not depend on it, since the end of a batch is in the checkpoint before anything is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, NamedTuple

from millstream.model.ids import TopicPartition

BYTES_PER_OFFSET_ASSUMED: Final = 1024
"""While nothing is known. Where records are smaller, batches are too until the first sample."""


class Span(NamedTuple):
    """Bytes that a number of offsets took."""

    offset_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteEstimate:
    """What was observed so far. `observed` and `with_log_sizes` give the next state."""

    fetched: Mapping[TopicPartition, Span] = field(default_factory=dict)
    logs: Mapping[TopicPartition, Span] = field(default_factory=dict)

    def with_log_sizes(self, logs: Mapping[TopicPartition, Span]) -> "ByteEstimate":
        """Whole logs: (latest - earliest, size on the leader). Replaces what was known of logs."""
        return replace(self, logs={tp: span for tp, span in logs.items() if _is_usable(span)})

    def observed(self, fetched: Mapping[TopicPartition, Span]) -> "ByteEstimate":
        """Spans that were fetched. What was seen before counts half, so that it is forgotten."""
        merged = dict(self.fetched)
        for partition, span in fetched.items():
            if _is_usable(span):
                before = merged.get(partition, Span(0, 0))
                merged[partition] = Span(
                    before.offset_count // 2 + span.offset_count,
                    before.size_bytes // 2 + span.size_bytes,
                )
        return replace(self, fetched=merged)

    def bytes_per_offset(self, partition: TopicPartition) -> Fraction:
        """Of the partition; failing that of all partitions together; failing that a guess."""
        known = self.known_bytes_per_offset(partition)
        return self._mean() if known is None else known

    def known_bytes_per_offset(self, partition: TopicPartition) -> Fraction | None:
        """Only what was observed of this very partition."""
        span = self.fetched.get(partition) or self.logs.get(partition)
        return None if span is None else Fraction(span.size_bytes, span.offset_count)

    def _mean(self) -> Fraction:
        spans = [*({**self.logs, **self.fetched}.values())]
        if not spans:
            return Fraction(BYTES_PER_OFFSET_ASSUMED)
        return Fraction(
            sum(one.size_bytes for one in spans), sum(one.offset_count for one in spans)
        )


def _is_usable(span: Span) -> bool:
    return span.offset_count > 0 and span.size_bytes > 0
