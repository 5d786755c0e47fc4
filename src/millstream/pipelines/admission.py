"""How much a micro-batch reads: limits in offsets and bytes, a minimum, and how long to wait.

Spark's Python API supports one limit at a time, so all of them are applied here, as pure functions
of offsets and of the time that the shell read from its clock. Rounding is the connector's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from millstream.model.ids import Offset, TimestampMs, TopicPartition
from millstream.pipelines.byte_estimate import ByteEstimate

Positions = Mapping[TopicPartition, Offset]

MAX_TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60 * 1000
"""The connector's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """The limits of the options. None: no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS_DEFAULT
    max_bytes: int | None = None

    @property
    def is_unlimited(self) -> bool:
        return self.max_offsets is None and self.min_offsets is None and self.max_bytes is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What could be read. Every partition of `latest` has a begin."""

    begins: Positions
    latest: Positions

    @property
    def sizes(self) -> dict[TopicPartition, int]:
        """Partitions with something to read."""
        sizes = ((tp, end - self.begins[tp]) for tp, end in self.latest.items())
        return {partition: size for partition, size in sizes if size > 0}

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerTimes:
    """`last` is None until the first batch of this run: a query that starts never waits."""

    now: TimestampMs
    last: TimestampMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The decision for one trigger."""

    ends: Positions | None
    """None: wait, there is too little. The source then answers with the start it was given."""
    last_trigger: TimestampMs | None
    """To be passed to the next trigger."""


def admit(
    limits: AdmissionLimits,
    backlog: Backlog,
    times: TriggerTimes,
    *,
    estimate: ByteEstimate,
    is_available_now: bool = False,
) -> Admission:
    """Decide one trigger.

    Under AvailableNow the minimum is ignored: the end is fixed, so no more records arrive, and
    waiting for them would end the query with records unread.
    """
    if not is_available_now and is_delayed(limits, available=backlog.size, times=times):
        return Admission(ends=None, last_trigger=times.last)
    offsets_max = _offsets_max(limits, backlog, estimate)
    ends = backlog.latest if offsets_max is None else rate_limited(offsets_max, backlog)
    last = times.last if limits.min_offsets is None else times.now
    return Admission(ends=ends, last_trigger=last)


def is_delayed(limits: AdmissionLimits, *, available: int, times: TriggerTimes) -> bool:
    """Whether to wait for more."""
    if limits.min_offsets is None or times.last is None:
        return False
    if times.now - times.last >= limits.max_delay_ms:
        return False
    return available < limits.min_offsets


def rate_limited(offsets_max: int, backlog: Backlog) -> dict[TopicPartition, Offset]:
    """Ends of a batch of about `offsets_max` offsets, in proportion to what each partition has.

    A partition that has something gets at least one offset, so the sum exceeds `offsets_max` by at
    most one for each partition whose share is below one. Partitions without backlog keep their end.
    """
    sizes = backlog.sizes
    # In this order and in floating point, as the connector: other rounding gives other batches.
    total = float(sum(sizes.values()))
    ends = dict(backlog.latest)
    for partition, size in sizes.items():
        share = offsets_max * (size / total)
        count = math.ceil(share) if share < 1 else math.floor(share)
        ends[partition] = Offset(min(ends[partition], backlog.begins[partition] + count))
    return ends


def offsets_for_bytes(bytes_max: int, backlog: Backlog, estimate: ByteEstimate) -> int | None:
    """The number of offsets whose estimated bytes fit, at least one; None when everything fits.

    Bytes are shared in proportion to the bytes that each partition has left. Divided by the
    partition's bytes per offset, that is a share of offsets in proportion to the offsets left:
    the same split as for a limit in offsets, so one number says it all.
    """
    sizes = backlog.sizes
    total_bytes = sum(
        (estimate.bytes_per_offset(partition) * size for partition, size in sizes.items()),
        start=Fraction(0),
    )
    if total_bytes <= bytes_max:
        return None
    return max(math.floor(sum(sizes.values()) * bytes_max / total_bytes), 1)


def _offsets_max(limits: AdmissionLimits, backlog: Backlog, estimate: ByteEstimate) -> int | None:
    """The tightest of the limits, in offsets."""
    found = [limits.max_offsets]
    if limits.max_bytes is not None:
        found.append(offsets_for_bytes(limits.max_bytes, backlog, estimate))
    return min((one for one in found if one is not None), default=None)
