"""Topic keys that decide what goes from a log and when, changed while the broker runs.

Each as the topic's own setting and as the broker's default; removed, the former behaviour is back.
That something stays is shown by another topic, of which it went meanwhile.
"""

from collections.abc import Iterator

import pytest

from kits.broker.topic_keys_kit import (
    CLEANED_AT_ONCE,
    Bench,
    Lever,
    effect_of,
    running_bench,
    wall_ms,
)
from kits.process.waiting_for import until
from kits.process.wire_client import build_batch
from millstream.wire.errors import ErrorCode

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SMALL = [(b"k", b"v" * 200)]
FOUR_BATCHES = 4 * len(build_batch(SMALL))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running_bench() as running:
        yield running


@pytest.fixture(params=["topic", "default"])
def lever(request: pytest.FixtureRequest, bench: Bench) -> Lever:
    return Lever(bench, is_default=request.param == "default")


def let_retention_pass(bench: Bench) -> None:
    """Retention removes old records of another topic: it has looked at all of them."""
    witness = bench.topic({"retention.ms": "1000", "cleanup.policy": "delete"})

    def pass_once() -> None:
        end = bench.put(witness, timestamp_ms=wall_ms() - HOUR_MS) + 1
        until(lambda: bench.log_start(witness) == end, "retention looked")

    pass_once()
    pass_once()


# -- delete ------------------------------------------------------------------------------------


@effect_of("retention.ms")
def test_old_records_go(bench: Bench, lever: Lever) -> None:
    topic = bench.topic()
    bench.put(topic, timestamp_ms=wall_ms() - DAY_MS)
    let_retention_pass(bench)
    assert bench.log_start(topic) == 0
    with lever.turned(topic, "retention.ms", str(HOUR_MS)):
        until(lambda: bench.log_start(topic) == 1, "the old record is gone")
    bench.put(topic, timestamp_ms=wall_ms() - DAY_MS)
    let_retention_pass(bench)
    assert bench.log_start(topic) == 1
    assert len(bench.records(topic)) == 1


@effect_of("retention.bytes")
def test_a_large_log_loses_its_oldest_segments(bench: Bench, lever: Lever) -> None:
    topic = bench.topic({"internal.segment.bytes": "300"})
    for _ in range(10):
        bench.put(topic, SMALL)
    let_retention_pass(bench)
    assert len(bench.records(topic)) == 10
    with lever.turned(topic, "retention.bytes", str(FOUR_BATCHES)):
        until(lambda: len(bench.records(topic)) == 4, "only what fits is left")
    for _ in range(4):
        bench.put(topic, SMALL)
    let_retention_pass(bench)
    assert len(bench.records(topic)) == 8


@effect_of("file.delete.delay.ms")
def test_removed_files_stay_for_the_delay(bench: Bench, lever: Lever) -> None:
    topic = bench.topic({"internal.segment.bytes": "300"})
    for _ in range(4):
        bench.put(topic, SMALL)
    with lever.turned(topic, "file.delete.delay.ms", "0"):
        bench.delete_records(topic, 2)
        until(lambda: not bench.files(topic, ".deleted"), "the files are gone at once")
        assert len(bench.files(topic)) == 2
    bench.delete_records(topic, 3)
    assert bench.files(topic, ".log.deleted")
    other = bench.topic({"internal.segment.bytes": "300", "file.delete.delay.ms": "0"})
    for _ in range(2):
        bench.put(other, SMALL)
    bench.delete_records(other, 1)
    until(lambda: not bench.files(other, ".deleted"), "another topic's files are gone")
    assert bench.files(topic, ".log.deleted")


def test_removed_files_go_in_time_whenever_retention_has_its_turn() -> None:
    with running_bench({"log.retention.check.interval.ms": "600000"}) as bench:
        topic = bench.topic({"internal.segment.bytes": "300", "file.delete.delay.ms": "100"})
        for _ in range(4):
            bench.put(topic, SMALL)
        bench.delete_records(topic, 2)
        until(lambda: not bench.files(topic, ".deleted"), "the files are gone", timeout_s=5)


@effect_of("cleanup.policy")
def test_a_policy_of_compact_wants_keys_and_keeps_the_last_of_each(
    bench: Bench, lever: Lever
) -> None:
    configs = {key: value for key, value in CLEANED_AT_ONCE.items() if key != "cleanup.policy"}
    topic = bench.topic({**configs, "retention.ms": str(DAY_MS)})
    keyless = [(None, b"v")]
    assert bench.code(topic, keyless) is ErrorCode.NONE
    bench.delete_records(topic, 1)
    bench.put_versions(topic, b"a", 4)
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"a")) == 4
    with lever.turned(topic, "cleanup.policy", "compact"):
        assert bench.code(topic, keyless) is ErrorCode.INVALID_RECORD
        bench.until_compacted(topic, b"a")
        bench.put(topic, [(b"old", b"o" * 200)], timestamp_ms=wall_ms() - 2 * DAY_MS)
        let_retention_pass(bench)
        assert bench.values_of(topic, b"old")
    # Retention again, but only from the front: the old record goes with what is before it.
    assert bench.code(topic, keyless) is ErrorCode.NONE
    bench.put_versions(topic, b"b", 3)
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"b")) == 3


def test_compact_and_delete_together_do_both(bench: Bench) -> None:
    topic = bench.topic({**CLEANED_AT_ONCE, "retention.ms": str(HOUR_MS)})
    for number in range(3):
        pairs = [(b"old%d" % number, b"o" * 200)]
        bench.put(topic, pairs, timestamp_ms=wall_ms() - 2 * HOUR_MS)
    let_retention_pass(bench)
    assert bench.log_start(topic) == 0
    bench.alter_topic(topic, cleanup_policy="compact,delete")
    until(lambda: bench.log_start(topic) == 3, "everything old is gone")
    bench.put_versions(topic, b"new")
    bench.until_compacted(topic, b"new")
    assert bench.code(topic, [(None, b"v")]) is ErrorCode.INVALID_RECORD


# -- compact -----------------------------------------------------------------------------------


@effect_of("min.compaction.lag.ms")
def test_young_records_are_left_alone(bench: Bench, lever: Lever) -> None:
    topic = bench.topic(CLEANED_AT_ONCE)
    with lever.turned(topic, "min.compaction.lag.ms", str(HOUR_MS)):
        bench.put_versions(topic, b"a", age_ms=60_000)
        bench.let_the_cleaner_pass()
        assert len(bench.values_of(topic, b"a")) == 3
    bench.until_compacted(topic, b"a")


def topic_with_a_clean_part(bench: Bench) -> str:
    """Compacted once, so that what is written now is a small part of the whole."""
    topic = bench.topic(CLEANED_AT_ONCE)
    for number in range(12):
        bench.put(topic, [(b"n%d" % number, b"v" * 200)])
    bench.put_versions(topic, b"first")
    bench.until_compacted(topic, b"first")
    bench.alter_topic(topic, min_cleanable_dirty_ratio=None)
    return topic


@effect_of("min.cleanable.dirty.ratio")
def test_a_log_is_cleaned_when_enough_of_it_is_dirty(bench: Bench, lever: Lever) -> None:
    """Half of it by default; what is written here is less."""
    topic = topic_with_a_clean_part(bench)
    bench.put_versions(topic, b"a")
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"a")) == 3
    with lever.turned(topic, "min.cleanable.dirty.ratio", "0.01"):
        bench.until_compacted(topic, b"a")
    bench.put_versions(topic, b"b")
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"b")) == 3


@effect_of("max.compaction.lag.ms")
def test_a_record_is_cleaned_at_the_latest_at_its_age(bench: Bench, lever: Lever) -> None:
    topic = topic_with_a_clean_part(bench)
    bench.put_versions(topic, b"a", age_ms=HOUR_MS)
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"a")) == 3
    with lever.turned(topic, "max.compaction.lag.ms", "60000"):
        bench.until_compacted(topic, b"a")
    bench.put_versions(topic, b"b", age_ms=HOUR_MS)
    bench.let_the_cleaner_pass()
    assert len(bench.values_of(topic, b"b")) == 3


@effect_of("delete.retention.ms")
def test_tombstones_go_after_their_time(bench: Bench, lever: Lever) -> None:
    """By default a day after a cleaning passed them; with none, at the next cleaning."""
    topic = bench.topic(CLEANED_AT_ONCE)

    def clean_past_a_tombstone(key: bytes) -> None:
        """Twice: the first sets the time at which it may go, the second finds that it has come."""
        bench.put_versions(topic, key)
        bench.put(topic, [(key, None), (b"pad" + key, b"p" * 200)])
        bench.put(topic, [(b"next", b"n" * 200)])
        until(lambda: bench.values_of(topic, key) in ([None], []), "the values are gone")
        bench.put_versions(topic, b"later" + key)
        bench.until_compacted(topic, b"later" + key)

    with lever.turned(topic, "delete.retention.ms", "0"):
        clean_past_a_tombstone(b"a")
        until(lambda: bench.values_of(topic, b"a") == [], "the tombstone is gone")
    clean_past_a_tombstone(b"b")
    assert bench.values_of(topic, b"b") == [None]
