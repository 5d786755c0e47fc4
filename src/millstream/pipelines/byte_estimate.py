"""Estimated bytes per offset of each partition, to convert a limit in bytes into offsets.

No request returns the size of an offset range, so this is an estimate, and `maxBytesPerTrigger` is
a target and no guarantee. Bytes are those on the wire: record batches as stored, compressed. There
are two sources: sizes of whole logs (DescribeLogDirs), available from the first batch on, and spans
that were fetched, which are specific to a range of the log and take precedence. Spark gives tasks
no way to report to the driver what they read, so fetched spans come from samples that the driver
takes where it reads next.

All values are integers: equal observations give equal decisions on every machine. A replay does
not depend on them, since the end of a batch is in the checkpoint before anything is read.
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
    """What was observed so far. `observed` and `with_log_sizes` return the next state."""

    fetched: Mapping[TopicPartition, Span] = field(default_factory=dict)
    logs: Mapping[TopicPartition, Span] = field(default_factory=dict)

    def with_log_sizes(self, logs: Mapping[TopicPartition, Span]) -> "ByteEstimate":
        """Whole logs: (latest - earliest, size on the leader). Replaces earlier log sizes."""
        return replace(self, logs={tp: span for tp, span in logs.items() if _is_usable(span)})

    def observed(self, fetched: Mapping[TopicPartition, Span]) -> "ByteEstimate":
        """Add spans that were fetched. Earlier ones are weighted by half, so that they fade."""
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
        """Of the partition; else of all partitions together; else BYTES_PER_OFFSET_ASSUMED."""
        known = self.known_bytes_per_offset(partition)
        return self._mean() if known is None else known

    def known_bytes_per_offset(self, partition: TopicPartition) -> Fraction | None:
        """Only what was observed of this partition."""
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
