"""How far groups are behind, as a scrape tells it: what is known, how much, in which steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import parser

from millstream.broker.groups import lag as group_lag
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import offset_of
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import OffsetCommitValue
from millstream.model.ids import GroupId, Offset
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.exposition import TextFormat, render

Key = tuple[str, str, int]


class Held:
    """A shard as far as a scrape sees it; its offsets are real ones."""

    def __init__(self, committed: Mapping[Key, int]) -> None:
        self.is_active = True
        self.machine = self
        self.offsets = Offsets()
        self._at = 0
        for key, offset in committed.items():
            self.commit(key, offset)

    def commit(self, key: Key, offset: int | None) -> None:
        group, topic, partition = key
        value = None
        if offset is not None:
            value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1)
        self.offsets.append(OffsetKey(GroupId(group), topic, partition), value, Offset(self._at))
        self._at += 1
        self.offsets.on_high_watermark(Offset(self._at))

    @property
    def offset_count(self) -> int:
        return self.offsets.count

    def committed_offsets(self, size: int) -> Iterator[list[tuple[OffsetKey, int]]]:
        for batch in self.offsets.in_batches(size):
            yield [(key, offset_of(packed)) for key, packed in batch]


class Replicas(dict[tuple[str, int], int]):
    """High watermarks of the partitions here; all of them are led here."""

    def high_watermark_of(self, name: tuple[str, int]) -> int | None:
        return self.get(name)

    def __iter__(self) -> Iterator[Any]:
        for (topic, index), end in self.items():
            place = SimpleNamespace(topic=topic, partition=index)
            yield SimpleNamespace(partition=place, log=SimpleNamespace(high_watermark=end))


class Site:
    """Metrics of a broker that coordinates groups."""

    def __init__(self, shards: Iterable[Held], ends: Mapping[tuple[str, int], int]) -> None:
        self.metrics = BrokerMetrics()
        self.coordinator = SimpleNamespace(shards=SimpleNamespace(active=list(shards)))
        services = SimpleNamespace(metrics=self.metrics, partitions=Replicas(ends))
        group_lag.register(cast("Any", services), lambda: cast("Any", self.coordinator))

    def pieces(self) -> Iterator[bytes]:
        return render(self.metrics, TextFormat.PROMETHEUS)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        text = b"".join(self.pieces()).decode()
        return {
            tuple(one.labels.values()): one.value
            for family in parser.text_string_to_metric_families(text)
            for one in family.samples
            if one.name == f"millstream_{name}"
        }


def test_committed_offsets_and_high_watermarks_are_told_and_the_lag_where_both_are_known() -> None:
    committed = {("a", "t", 0): 3, ("a", "t", 1): 9, ("b", "t", 0): 7, ("b", "elsewhere", 0): 5}
    ends = {("t", 0): 7, ("t", 1): 8, ("alone", 0): 4}
    site = Site([Held(committed)], ends)
    assert site.values("group_committed_offset") == {
        ("a", "t", "0"): 3,
        ("a", "t", "1"): 9,
        ("b", "t", "0"): 7,
        ("b", "elsewhere", "0"): 5,
    }
    # The group has read what a follower has not heard of yet: it is not ahead, it is not behind.
    assert site.values("group_lag") == {
        ("a", "t", "0"): 4,
        ("a", "t", "1"): 0,
        ("b", "t", "0"): 0,
    }
    assert site.values("partition_high_watermark") == {
        ("t", "0"): 7,
        ("t", "1"): 8,
        ("alone", "0"): 4,
    }
    assert site.values("group_offsets_left_out") == {(): 0}


def test_nothing_is_told_before_there_is_a_coordinator() -> None:
    site = Site([], {})
    assert site.values("group_lag") == {}
    assert b"group_lag" not in b"".join(site.pieces())


def test_there_are_no_more_series_than_the_limit_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_lag, "METRIC_SERIES_MAX", 700)
    shards = [Held({(f"g{n}", "t", p): p for p in range(500)}) for n in range(3)]
    site = Site(shards, {("t", p): 1000 for p in range(900)})
    for name in ("group_committed_offset", "group_lag", "partition_high_watermark"):
        assert len(site.values(name)) == 700
    assert site.values("group_offsets_left_out") == {(): 800}
    assert site.values("partitions_left_out") == {(): 200}


def test_long_names_of_groups_are_cut_and_stay_different() -> None:
    names = ["x" * 30_000 + end for end in "ab"] + ["y" * 255]
    site = Site([Held({(name, "t", 0): 1 for name in names})], {})
    told = [group for group, _, _ in site.values("group_committed_offset")]
    assert len(set(told)) == 3
    assert max(map(len, told)) == 255
    assert "y" * 255 in told


def begin(site: Site, until: Callable[[bytes], bool]) -> tuple[list[bytes], Iterator[bytes]]:
    pieces, seen = site.pieces(), []
    for piece in pieces:
        seen.append(piece)
        if until(piece):
            break
    return seen, pieces


def test_commits_and_deletions_between_two_pieces_harm_nothing() -> None:
    held = Held({(f"g{n}", "t", p): 1 for n in range(40) for p in range(100)})
    site = Site([held], {})
    seen, pieces = begin(site, lambda piece: b"group_committed_offset{" in piece)
    for n in range(40):
        held.commit((f"g{n}", "t", 0), None if n % 2 else 5)
        held.commit((f"new{n}", "t", 0), 5)
    for p in range(100):
        held.commit(("g39", "t", p), None)
    text = b"".join([*seen, *pieces]).decode()
    (failures,) = [line for line in text.splitlines() if line.startswith("millstream_scrape_fail")]
    assert failures.endswith(" 0")
    told = [line for line in text.splitlines() if line.startswith("millstream_group_committed_off")]
    assert len({line.partition("}")[0] for line in told}) == len(told), "none is told twice"
    assert sum('"g20"' in line for line in told) == 100


def test_a_shard_that_is_led_elsewhere_by_now_is_left_to_its_new_coordinator() -> None:
    held, other = (Held({(name, "t", p): 1 for p in range(1000)}) for name in "ab")
    site = Site([held, other], {})
    seen, pieces = begin(site, lambda piece: b"group_committed_offset{" in piece)
    held.is_active = False
    text = b"".join([*seen, *pieces])
    committed = [
        one for one in text.splitlines() if one.startswith(b"millstream_group_committed_o")
    ]
    assert sum(b'"a"' in one for one in committed) <= 2 * group_lag.STEP
    assert sum(b'"b"' in one for one in committed) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_hundred_thousand_offsets_are_told_in_short_steps(where: str) -> None:
    """Also where nothing is found: looking takes its time as well."""
    count = 100_000
    offsets = {(f"g{n // 1000}", where, n % 1000): n for n in range(count)}
    site = Site([Held(offsets)], {("here", n): count for n in range(1000)})
    seen, _ = begin(site, lambda piece: b"group_offsets_left_out" in piece)
    lines = [piece.count(b"\n") for piece in seen]
    assert max(lines) <= 2 * group_lag.STEP
    told = count if where == "elsewhere" else 2 * count
    assert told <= sum(lines) < told + 1000
    assert len(seen) >= 2 * count / group_lag.STEP, "a step each, whether it found something or not"


def test_a_metric_that_fails_half_way_ends_there_and_is_counted() -> None:
    metrics = BrokerMetrics()

    def failing() -> Iterator[list[tuple[tuple[str, ...], float]]]:
        yield [(("1",), 1)]
        raise ValueError

    metrics.register_stepwise("steps", "Steps", failing, label_names=["n"])
    metrics.register_stepwise("stops", "None", cast("Any", lambda: 1 / 0), label_names=["n"])
    text = b"".join(render(metrics, TextFormat.PROMETHEUS)).decode()
    assert 'millstream_steps{n="1"} 1\n' in text
    assert "millstream_stops" not in text
    again = b"".join(render(metrics, TextFormat.PROMETHEUS)).decode()
    assert "millstream_scrape_failures_total 2\n" in again


def test_batches_have_everything_once_in_the_size_asked_for() -> None:
    held = Held({(f"g{n}", f"t{p}", p): n for n in range(7) for p in range(11)})
    batches = list(held.offsets.in_batches(10))
    assert [len(one) for one in batches] == [10] * 7 + [7]
    keys = sorted(key for batch in batches for key, _ in batch)
    assert len(keys) == 77
    assert all(one < other for one, other in pairwise(keys))
