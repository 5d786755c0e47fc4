"""What must hold after any kills, as functions of what was read, written and reported."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.control import Report

Row = tuple[int, int]
"""Partition and offset of a record of the source; every value carries its own."""


def check_nothing_missing(expected: Iterable[Row], found: Counter[Row]) -> None:
    """I-43 at least once, and nothing that the source did not have."""
    wanted = set(expected)
    missing = sorted(wanted - set(found))
    if missing:
        raise ChaosFailed(f"I-43 {len(missing)} rows are missing, the first is {missing[0]}")
    foreign = sorted(set(found) - wanted)
    if foreign:
        raise ChaosFailed(f"I-43 {len(foreign)} rows are foreign, the first is {foreign[0]}")


def check_once(found: Counter[Row]) -> None:
    """I-43 for a sink that is exactly-once."""
    twice = sorted(row for row, copies in found.items() if copies > 1)
    if twice:
        raise ChaosFailed(f"I-43 {len(twice)} rows are there twice, the first is {twice[0]}")


def check_copies(found: Counter[Row], reads: Iterable[Report], writes: Iterable[Report]) -> int:
    """A row may be there as often as its task was run, no more; return how many are surplus."""
    runs = Counter((one.batch, one.task) for one in writes)
    surplus = 0
    allowed: dict[Row, int] = {}
    for one in reads:
        partition, start, end = _range(one)
        times = runs[one.batch, one.task]
        allowed.update(((partition, offset), times) for offset in range(start, end))
    for row, copies in found.items():
        if copies > allowed.get(row, 0):
            raise ChaosFailed(f"row {row} is there {copies} times, written {allowed.get(row, 0)}")
        surplus += copies - 1
    return surplus


def check_reads(reads: Iterable[Report]) -> int:
    """A task of a batch reads the same each time; return how many reads were compared."""
    first: dict[tuple[int | None, int | None], Mapping[str, Any]] = {}
    compared = 0
    for one in reads:
        _, start, end = _range(one)
        if one.facts["rows"] != end - start:
            raise ChaosFailed(f"batch {one.batch} has rows missing in a read: {dict(one.facts)}")
        known = first.setdefault((one.batch, one.task), one.facts)
        if known is not one.facts:
            compared += 1
            if known != one.facts:
                difference = f"read {dict(known)}, then {dict(one.facts)}"
                raise ChaosFailed(f"I-43 task {one.task} of batch {one.batch} {difference}")
    return compared


def check_plans(plans: Iterable[Report], ends: Mapping[int, Mapping[str, Any]]) -> int:
    """A batch is in the offset log before it is planned, and has the same tasks each time."""
    first: dict[int, list[str]] = {}
    compared = 0
    for one in plans:
        batches = [batch for batch, end in ends.items() if end == one.facts["end"]]
        if not batches:
            raise ChaosFailed(f"I-43 a batch was planned and not logged: {one.facts['end']}")
        tasks = list(one.facts["tasks"])
        known = first.setdefault(batches[0], tasks)
        if known is not tasks:
            compared += 1
            if known != tasks:
                raise ChaosFailed(f"I-43 batch {batches[0]} was planned as {known}, then {tasks}")
    return compared


def _range(one: Report) -> tuple[int, int, int]:
    return one.facts["partition"], one.facts["start"], one.facts["end"]
