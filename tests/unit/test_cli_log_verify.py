"""`millstream log verify` tells the truth about files and leaves them alone."""

from pathlib import Path

import pytest

from cli_kit import everything_below, flip_byte, millstream, write_log


def test_sound_partition(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=40)
    done = millstream("log", "verify", partition)
    assert (done.code, done.err) == (0, "")
    row = next(line for line in done.out.splitlines() if "events-0" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    segments = len(list(partition.glob("*.log")))
    assert segments > 1
    assert cells[:5] == ["events-0", str(segments), "40", "120", "[0, 120)"]
    assert cells[6] == "none"
    assert "1 partition checked, no problems" in done.out


def test_log_directory_means_all_its_partitions(tmp_path: Path) -> None:
    for topic in ("events", "profiles"):
        write_log(tmp_path, topic)
    (tmp_path / "lost+found").mkdir()
    done = millstream("log", "verify", f"{tmp_path}/")
    assert done.code == 0
    assert "events-0" in done.out
    assert "profiles-0" in done.out
    assert "2 partitions checked, no problems" in done.out


def test_a_partition_given_twice_is_checked_once(tmp_path: Path) -> None:
    partition = write_log(tmp_path)
    assert "1 partition checked" in millstream("log", "verify", tmp_path, partition).out


def test_flipped_byte_is_a_problem_with_its_place(tmp_path: Path) -> None:
    segment = write_log(tmp_path) / "00000000000000000000.log"
    flip_byte(segment, 70)
    done = millstream("log", "verify", tmp_path)
    assert done.code == 1
    assert f"problem: {segment}: CRC batch at 0" in done.out
    assert "1 partition checked, problems: " in done.out.splitlines()[-1]


def test_wrong_index_is_a_problem(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=40)
    index = next(path for path in sorted(partition.glob("*.index")) if path.stat().st_size)
    flip_byte(index, 7)
    done = millstream("log", "verify", partition)
    assert done.code == 1
    assert f"problem: {index}: " in done.out


def test_one_bad_partition_among_good_ones(tmp_path: Path) -> None:
    write_log(tmp_path, "good")
    (write_log(tmp_path, "bad") / "00000000000000000000.log").write_bytes(b"x" * 100)
    done = millstream("log", "verify", tmp_path)
    assert done.code == 1
    rows = {line.split("│")[1].strip(): line for line in done.out.splitlines() if "-0 " in line}
    assert "none" in rows["good-0"]
    assert "none" not in rows["bad-0"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nothing_is_changed(tmp_path: Path, is_damaged: bool) -> None:
    partition = write_log(tmp_path)
    if is_damaged:
        flip_byte(partition / "00000000000000000000.log", 70)
    before = everything_below(tmp_path)
    millstream("log", "verify", tmp_path)
    millstream("log", "dump", partition, "--records")
    assert everything_below(tmp_path) == before


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, reason in [
        ("missing", "no such directory"),
        ("file", "not a directory"),
        ("empty", "neither a partition directory nor a log directory"),
    ]:
        done = millstream("log", "verify", tmp_path / name)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"millstream: {tmp_path / name}: {reason}\n"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    partition = write_log(tmp_path)
    (partition / "00000000000000000000.log").unlink()
    (partition / "00000000000000000000.log").mkdir()
    done = millstream("log", "verify", partition)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "00000000000000000000.log: Is a directory" in done.err
