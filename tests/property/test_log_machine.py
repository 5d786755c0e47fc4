"""The log against a plain list, under appends, truncations, lost indexes and crashes."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.kernels.compression import Codec
from millstream.testing.log_kit import COMPACTED, SMALL_SEGMENTS
from millstream.testing.simulation.log.driver import LogDriver

parts = st.floats(0, 1)
counts = st.integers(1, 4)
producers = st.integers(1, 3)


class AnyLogMachine(RuleBasedStateMachine):
    """Every step is checked in full: I-02, I-03, I-05, I-08, I-10, I-11, I-20, I-23."""

    driver: LogDriver
    config = SMALL_SEGMENTS

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.driver = LogDriver(seed, config=self.config)

    @rule(count=counts, codec=st.sampled_from(Codec), size=st.sampled_from([0, 20, 300]))
    def append(self, count: int, codec: Codec, size: int) -> None:
        self.driver.append(count, codec=codec, size=size)

    @rule(by=st.integers(1, 3), count=counts)
    def append_in_new_epoch(self, by: int, count: int) -> None:
        self.driver.raise_epoch(by)
        self.driver.append(count)

    @rule(producer=producers, count=counts)
    def append_idempotent(self, producer: int, count: int) -> None:
        self.driver.append_idempotent(producer, count)

    @rule(producer=producers)
    def retry(self, producer: int) -> None:
        self.driver.retry(producer)

    @rule(count=counts, gap=st.integers(0, 3))
    def append_as_follower(self, count: int, gap: int) -> None:
        self.driver.append_as_follower(count, gap=gap)

    @rule()
    def flush(self) -> None:
        self.driver.flush()

    @rule()
    def store_recovery_point(self) -> None:
        self.driver.store_recovery_point()

    @rule()
    def roll(self) -> None:
        self.driver.roll()

    @rule(part=parts)
    def set_high_watermark(self, part: float) -> None:
        self.driver.set_high_watermark(part)

    @rule(part=parts)
    def truncate(self, part: float) -> None:
        self.driver.truncate(part)

    @rule(ahead=st.integers(0, 5))
    def truncate_fully(self, ahead: int) -> None:
        self.driver.truncate_fully(ahead)

    @rule(part=parts)
    def advance_start(self, part: float) -> None:
        self.driver.advance_start(part)

    @rule()
    def delete_due(self) -> None:
        self.driver.delete_due()

    @rule(part=parts, suffix=st.sampled_from([".index", ".timeindex"]))
    def lose_index(self, part: float, suffix: str) -> None:
        self.driver.lose_index(part, suffix)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule()
    def kill(self) -> None:
        self.driver.kill()

    @rule()
    def lose_power(self) -> None:
        self.driver.lose_power()

    @invariant()
    def log_equals_model(self) -> None:
        if hasattr(self, "driver"):
            self.driver.verify()


class LogMachine(AnyLogMachine):
    """With transactions."""

    @rule(transactions=st.integers(1, 7), size=st.sampled_from([20, 300]))
    def fetch(self, transactions: int, size: int) -> None:
        self.driver.fetch(transactions, size=size)

    @rule(producer=producers, count=counts)
    def append_transactional(self, producer: int, count: int) -> None:
        self.driver.append_transactional(producer, count)

    @rule(producer=producers, is_commit=st.booleans())
    def end_transaction(self, producer: int, is_commit: bool) -> None:
        self.driver.end_transaction(producer, is_commit=is_commit)


class CompactedLogMachine(AnyLogMachine):
    """With compaction; transactions in compacted logs have a machine of their own."""

    config = COMPACTED

    @rule()
    def compact(self) -> None:
        self.driver.compact()


TestLogMachine = LogMachine.TestCase
TestCompactedLogMachine = CompactedLogMachine.TestCase
TestLogMachine.settings = TestCompactedLogMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
