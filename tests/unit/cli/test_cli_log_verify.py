"""`millstream log verify` tells the truth about files and leaves them alone."""

import os
import sys
from pathlib import Path
from subprocess import run

import pytest

from kits.process.cli_kit import everything_below, flip_byte, millstream, write_log


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
    assert f"problem: {segment}: a batch with a wrong CRC at byte 0\n" in done.out
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


def test_an_empty_path_is_refused() -> None:
    """An unset variable in a script must not mean the root directory."""
    done = millstream("log", "verify", "")
    assert (done.code, done.out, done.err) == (
        2,
        "",
        "millstream: the path is empty; give a directory\n",
    )


def test_a_log_directory_without_partitions_is_sound(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    done = millstream("log", "verify", tmp_path)
    assert (done.code, done.out, done.err) == (0, "no partitions, no problems\n", "")


def test_a_partition_without_segments_is_the_same_from_inside_and_outside(tmp_path: Path) -> None:
    (tmp_path / "new-0").mkdir()
    inside, outside = (millstream("log", "verify", path) for path in (tmp_path / "new-0", tmp_path))
    assert inside == outside
    assert (inside.code, inside.err) == (0, "")
    assert "1 partition checked, no problems" in inside.out


def test_a_log_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    root = tmp_path / "kafka-logs-1"
    write_log(root)
    assert "events-0" in millstream("log", "verify", root).out
    (root / "events-0").rename(tmp_path / "elsewhere")
    assert millstream("log", "verify", root).out == "no partitions, no problems\n"


def test_what_is_missing_does_not_keep_the_rest_from_being_checked(tmp_path: Path) -> None:
    good = write_log(tmp_path)
    done = millstream("log", "verify", tmp_path / "gone", good, tmp_path / "gone-too")
    assert done.code == 2
    assert done.err.splitlines() == [
        f"millstream: {tmp_path / name}: no such directory" for name in ("gone", "gone-too")
    ]
    assert "1 partition checked, no problems" in done.out


def test_one_unreadable_partition_does_not_hide_the_others(tmp_path: Path) -> None:
    write_log(tmp_path, "good")
    pipe = write_log(tmp_path, "bad") / "leader-epoch-checkpoint"
    pipe.unlink()
    os.mkfifo(pipe)
    done = millstream("log", "verify", tmp_path)
    assert (done.code, done.err) == (2, f"millstream: {pipe}: not a regular file\n")
    assert "good-0" in done.out
    assert "1 partition checked, no problems" in done.out


def test_a_damaged_checkpoint_of_the_directory_is_a_problem(tmp_path: Path) -> None:
    write_log(tmp_path)
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n2\nevents 0 3\n")
    done = millstream("log", "verify", tmp_path)
    assert done.code == 1
    assert f"problem: {path}: line 2: '2' entries announced, 1 found\n" in done.out
    path.write_text("")
    done = millstream("log", "verify", tmp_path)
    assert done.code == 0
    assert f"note: {path}: is empty" in done.out


def test_many_notes_are_counted(tmp_path: Path) -> None:
    partition = write_log(tmp_path)
    for offset in range(15):
        (partition / f"{offset:020d}.snapshot").write_bytes(b"torn")
    done = millstream("log", "verify", partition)
    assert done.code == 0
    assert done.out.count("note: ") == 11
    assert "note: and 5 more\n1 partition checked, no problems\n" in done.out


def test_names_are_never_wrapped_or_taken_for_markup(tmp_path: Path) -> None:
    topic = "a-long-name." * 16
    write_log(tmp_path, topic)
    write_log(tmp_path).rename(tmp_path / "[red]events")
    command = [sys.executable, "-m", "millstream.cli.main", "log", "verify"]
    paths = [tmp_path / f"{topic}-0", tmp_path / "[red]events"]
    narrow = os.environ | {"COLUMNS": "40"}
    done = run([*command, *paths], env=narrow, capture_output=True, text=True, check=True)
    assert f"│ {topic}-0 │" in done.stdout
    assert "│ [red]events " in done.stdout


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    partition = write_log(tmp_path)
    (partition / "00000000000000000000.log").unlink()
    (partition / "00000000000000000000.log").mkdir()
    done = millstream("log", "verify", partition)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "00000000000000000000.log: Is a directory" in done.err
