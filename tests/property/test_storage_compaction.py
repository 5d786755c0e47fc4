"""Random keys, transactions, cleanings and restarts against a dictionary."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kits.storage.compaction_kit import RETENTION_MS, ROOT, Bench, sim_disk, state_of
from millstream.kernels.compression import Codec
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.log.reader import Isolation
from millstream.testing.record_batches import PlainRecord
from millstream.testing.sim.crash_fates import random_fates
from millstream.testing.sim.disk import SimDisk

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
values = st.one_of(st.none(), st.binary(max_size=40))
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=6)


class CompactionMachine(RuleBasedStateMachine):
    """The model is what a reader from the beginning ends up with, and every record ever written."""

    bench: Bench

    @initialize(map_keys=st.integers(1, 8))
    def start(self, map_keys: int) -> None:
        self.bench = Bench(SimDisk(directories=[ROOT]), key_map_bytes=24 * (map_keys + 1))
        self.map_bytes = 24 * (map_keys + 1)
        self.committed: dict[bytes, bytes | None] = {}
        self.written: dict[int, PlainRecord] = {}
        self.sequences: dict[int, int] = {}

    def _note(self) -> None:
        """Remember all records as they were first read."""
        for record in self.bench.records():
            self.written.setdefault(record.offset, record)

    @rule(batch=pairs, codec=st.sampled_from(Codec))
    def append(self, batch: list[tuple[bytes, bytes | None]], codec: Codec) -> None:
        self.bench.append(batch, codec=codec)
        self.committed.update(batch)
        self._note()

    @rule(batch=pairs, producer=st.integers(1, 2), is_commit=st.booleans(), roll=st.booleans())
    def transaction(
        self,
        batch: list[tuple[bytes, bytes | None]],
        producer: int,
        is_commit: bool,
        roll: bool,
    ) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(batch)
        self.bench.in_transaction(batch, producer_id=producer, sequence=sequence)
        self._note()
        if roll:
            self.bench.seal()
        self.bench.end_transaction(producer_id=producer, is_commit=is_commit)
        self._note()
        if is_commit:
            self.committed.update(batch)

    @rule()
    def seal(self) -> None:
        self.bench.seal()

    @rule()
    def roll(self) -> None:
        """Without a flush: that is the cleaner's to ask for."""
        self.bench.log.roll()
        self.bench.log.set_high_watermark(self.bench.log.log_end)

    @rule(by_ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]))
    def wait(self, by_ms: int) -> None:
        self.bench.clock.advance(by_ms)

    @rule()
    def clean(self) -> None:
        if self.bench.cleaner.run_once() is not None:
            self.bench.background.run_all()
            self.bench.check()

    @rule(jobs=st.integers(0, 12), batch=pairs)
    def append_during_cleaning(self, jobs: int, batch: list[tuple[bytes, bytes | None]]) -> None:
        self.bench.cleaner.run_once()
        for _ in range(jobs):
            self.bench.background.run_next()
        self.append(batch, Codec.NONE)
        self.bench.background.run_all()
        self.bench.check()

    @rule(jobs=st.integers(0, 12), seed=st.integers(0, 1000), is_power_loss=st.booleans())
    def crash_during_cleaning(self, jobs: int, seed: int, is_power_loss: bool) -> None:
        bench = self.bench
        bench.settle_watermarks()
        owner = bench.opened.owner
        partition = bench.log.partition
        owner.store(names.RECOVERY_POINTS, {partition: bench.log.recovery_start})
        owner.store(names.HIGH_WATERMARKS, {partition: bench.log.high_watermark})
        bench.cleaner.run_once()
        for _ in range(jobs):
            bench.background.run_next()
        disk = sim_disk(bench)
        if is_power_loss:
            disk.crash()
            survivor = disk.after_crash(random_fates(SeededRandomness(seed)))
        else:
            disk.kill()
            survivor = disk.after_kill()
        self.bench = Bench(survivor, clock=bench.clock, key_map_bytes=self.map_bytes)
        assert self.bench.log.log_end == bench.log.log_end
        self.bench.check()
        assert not self.bench.strange_files()

    @rule()
    def restart(self) -> None:
        bench = self.bench
        bench.opened.owner.store(
            names.CLEANER_OFFSETS, {bench.log.partition: bench.log.first_dirty_offset}
        )
        bench.opened.close()
        self.bench = Bench(
            bench.disk, is_clean=True, clock=bench.clock, key_map_bytes=self.map_bytes
        )

    @invariant()
    def readers_end_up_with_the_newest(self) -> None:
        found = self.bench.records(Isolation.LOG_END)
        for record in found:
            assert self.written[record.offset] == record, "I-02 a record changed"
        self.bench.log.set_high_watermark(self.bench.log.log_end)
        committed = self.bench.records(Isolation.COMMITTED)
        expected = {key: value for key, value in self.committed.items() if value is not None}
        assert state_of(committed) == expected


CompactionMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCompaction = CompactionMachine.TestCase


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(pairs, st.booleans()), min_size=1, max_size=20),
    st.integers(1, 6),
    st.sampled_from(Codec),
)
def test_a_clean_log_holds_each_key_once(
    batches: list[tuple[list[tuple[bytes, bytes | None]], bool]], map_keys: int, codec: Codec
) -> None:
    """However small the map: when the cleaner is done, only the newest record of a key is left."""
    bench = Bench(key_map_bytes=24 * (map_keys + 1))
    newest: dict[bytes, bytes | None] = {}
    for batch, is_sealed in batches:
        bench.append(batch, codec=codec)
        newest.update(batch)
        if is_sealed:
            bench.seal()
    bench.seal()
    bench.clean()
    found = bench.values()
    assert sorted(found) == sorted(newest.items()), "tombstones too, for now"
    bench.clock.advance(RETENTION_MS)
    bench.append([(b"end", b"x")])
    bench.seal()
    bench.clean()
    alive = {key: value for key, value in newest.items() if value is not None}
    assert bench.state() == {**alive, b"end": b"x"}
    assert len(bench.values()) == len(alive) + 1
