"""A few rounds of chaos, and proof that its checks can fail."""

import shutil
from pathlib import Path

import pytest

from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos import run as chaos
from millstream.testing.chaos.broker import rounds as chaos_broker
from millstream.testing.chaos.broker.client import check_partition
from millstream.testing.chaos.broker.rounds import BrokerChaos
from millstream.testing.chaos.log.damage import LogFiles, scan_log_files
from millstream.testing.chaos.log.reader import ChaosFailed, Expected, check_log
from millstream.testing.chaos.log.writer import PARTITION
from millstream.testing.chaos.run import Writer, run_chaos
from millstream.testing.simulation.run import BROKER

SEED = 20_240_101


def test_what_is_acknowledged_survives_kills_and_damage() -> None:
    lines: list[str] = []
    run = run_chaos(8, SEED, lines.append)
    assert run.failure is None, run.failure
    assert len(lines) == run.rounds == 8
    assert run.counts["acknowledgements"] > 0
    assert run.counts["recovered and checked"] > 0


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_no_rounds_at_all_are_refused(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        chaos.main(["--rounds", rounds])
    assert "--rounds must be at least 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory as a killed writer left it."""
    directory = tmp_path_factory.mktemp("killed")
    writer = Writer(str(directory), seed=SEED, life=1)
    writer.wait_for_acks(12)
    writer.kill()
    assert writer.acks >= 12
    return directory


@pytest.fixture
def log(killed: Path, tmp_path: Path) -> tuple[str, LogFiles, Expected]:
    """A copy of it to harm, its batches, and what must be found."""
    shutil.copytree(killed, tmp_path / "data")
    directory = str(tmp_path / "data")
    files = scan_log_files(OsDisk(), f"{directory}/{PARTITION}")
    expected = Expected(SEED, log_end=files.log_end, segment_bytes=files.sizes)
    expected.begin_life(1, 0)
    return directory, files, expected


def check(directory: str, expected: Expected) -> None:
    check_log(directory, expected, SeededRandomness(SEED))


def test_an_honest_log_passes(log: tuple[str, LogFiles, Expected]) -> None:
    directory, _, expected = log
    check(directory, expected)


def test_a_lost_tail_is_seen(log: tuple[str, LogFiles, Expected]) -> None:
    directory, files, expected = log
    last = files.locations[-1]
    with OsDisk().open_write(files.path(last.segment)) as file:
        file.truncate(last.position + last.size - 1)
    with pytest.raises(ChaosFailed, match="I-11 log ends at"):
        check(directory, expected)


def test_records_of_an_older_life_are_seen(log: tuple[str, LogFiles, Expected]) -> None:
    """As if a truncated tail had come back in place of what was written after it."""
    directory, files, expected = log
    expected.begin_life(2, files.locations[-1].first)
    with pytest.raises(ChaosFailed, match="I-02 found"):
        check(directory, expected)


def test_a_moved_record_is_seen(log: tuple[str, LogFiles, Expected]) -> None:
    """Base offset is not under the CRC: only the content gives it away."""
    directory, files, expected = log
    last = files.locations[-1]
    with OsDisk().open_write(files.path(last.segment)) as file:
        file.write_at(last.position, (last.first + 1).to_bytes(8, "big"))
    expected.log_end += 1
    with pytest.raises(ChaosFailed, match="I-02 found"):
        check(directory, expected)


def test_too_much_retention_is_seen(log: tuple[str, LogFiles, Expected]) -> None:
    directory, files, expected = log
    del directory
    with pytest.raises(ChaosFailed, match="retention took too much"):
        expected.move_start(files.locations[-1].first)


def test_a_start_that_goes_back_is_seen(log: tuple[str, LogFiles, Expected]) -> None:
    directory, files, expected = log
    expected.log_start = files.log_end  # later than wherever retention has brought it
    with pytest.raises(ChaosFailed, match="log start went back"):
        check(directory, expected)


def test_a_writer_that_fails_by_itself_is_seen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no directory")
    writer = Writer(str(tmp_path / "file"), seed=SEED, life=1)
    writer.wait_for_acks(1)
    with pytest.raises(ChaosFailed, match="the writer ended by itself with exit code 1"):
        writer.kill()
    assert "StorageFailed" in capfd.readouterr().err


def test_failure_is_told_with_seed_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: chaos.Chaos) -> str:
        raise ChaosFailed("planted")

    monkeypatch.setattr(chaos.Chaos, "run_round", fail)
    run = run_chaos(5, 77, lambda _: None)
    assert run.failure is not None
    for part in (
        "ChaosFailed: planted",
        "seed   77",
        "make chaos ROUNDS=1 SEED=77 PART=log",
        "commit ",
    ):
        assert part in run.failure
    shutil.rmtree(run.failure.rpartition("files: ")[2])


# -- the broker's ------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_broker_acknowledged_survives_whatever_happens_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind of event once."""
    events = iter(chaos_broker.EVENTS)
    inject = BrokerChaos._inject
    monkeypatch.setattr(BrokerChaos, "_inject", lambda self, _: inject(self, next(events)))
    run = run_chaos(len(chaos_broker.EVENTS), SEED, lambda _: None, part=BROKER)
    assert run.failure is None, run.failure
    assert run.counts["records acknowledged"] > 0
    assert run.counts["read and compared"] == 1


HONEST = [(offset, offset * 4) for offset in range(5)]


def test_an_honest_partition_passes() -> None:
    check_partition(HONEST, HONEST, 0)


@pytest.mark.parametrize(
    ("records", "acknowledged", "match"),
    [
        (HONEST[:-1], HONEST, "I-01 16 was acknowledged at 0:4, found nothing"),
        ([*HONEST[:-1], (4, 20)], HONEST, "I-01 16 was acknowledged at 0:4, found 20"),
        ([*HONEST, (5, 16)], HONEST, "I-20 partition 0 has 16 after 16"),
        ([*HONEST, (5, 3)], HONEST, "I-20 partition 0 has 3 after 16"),
        ([*HONEST, (6, 20)], HONEST, "gaps"),
        ([*HONEST, (5, 20)], HONEST, "6 records of 5"),
    ],
    ids=["lost", "another", "twice", "out of order", "gap", "foreign"],
)
def test_a_broker_that_is_wrong_is_seen(
    records: list[tuple[int, int]], acknowledged: list[tuple[int, int]], match: str
) -> None:
    with pytest.raises(ChaosFailed, match=match):
        check_partition(records, acknowledged, 0)
