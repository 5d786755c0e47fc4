"""`millstream log dump` shows what is stored, as far as it is sound."""

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

from crc32c import crc32c

from kits.process.cli_kit import flip_byte, millstream, write_log
from millstream.kernels.compression import Codec
from millstream.model.ids import LeaderEpoch
from millstream.runtime.os_disk import OsDisk
from millstream.storage.producers.machine import Origin
from millstream.testing.log_kit import open_log
from millstream.testing.record_batches import BatchSpec, Pair, build_batch, build_marker
from millstream.testing.sim.clock import ManualClock

EPOCH = LeaderEpoch(0)
BATCH_BYTES = 94
"""Of the first batches that `write_log` writes."""


def test_one_line_per_batch_over_all_segments(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=40)
    done = millstream("log", "dump", partition)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    ranges = [line.split(")")[0] + ")" for line in lines]
    assert ranges == [f"batch [{first}, {first + 3})" for first in range(0, 120, 3)]
    told = f"position 0 size {BATCH_BYTES} records 3 epoch 0 codec none time 1000..1000"
    assert lines[0].endswith(told)


def test_offset_begins_with_the_batch_that_holds_it(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=40)
    first = millstream("log", "dump", partition, "--offset", "100", "--limit", "2").out
    assert [line[:12] for line in first.splitlines()] == ["batch [99, 1", "batch [102, "]
    records = millstream("log", "dump", partition, "--offset", "100", "--limit", "2", "--records")
    assert records.out.splitlines()[1:] == [
        "  100 time 1000 key 'k100' value 'v100'",
        "  101 time 1000 key 'k101' value 'v101'",
    ]


def test_offset_beyond_the_end_is_told(tmp_path: Path) -> None:
    done = millstream("log", "dump", write_log(tmp_path), "--offset", "10000")
    assert (done.code, done.out) == (0, "")
    assert done.err == "millstream: no batch at or after offset 10000: the log ends at 30\n"


def test_an_empty_log_is_told(tmp_path: Path) -> None:
    done = millstream("log", "dump", write_log(tmp_path, batches=0))
    assert (done.code, done.out) == (0, "")
    assert done.err == "millstream: no batch at or after offset 0: the log ends at 0\n"


def test_limit_counts_records_when_they_are_shown(tmp_path: Path) -> None:
    done = millstream("log", "dump", write_log(tmp_path), "--records", "--limit", "4")
    lines = done.out.splitlines()
    assert [line.startswith("batch") for line in lines] == [True] + [False] * 3 + [True, False]


def test_records_of_every_shape(tmp_path: Path) -> None:
    opened = open_log(OsDisk(), ManualClock(), root=str(tmp_path))
    pairs: list[Pair] = [(None, "žluť".encode()), (b"", None), (b"\xff\x00", b"a" * 500)]
    headers = [("trace", b"\x01"), ("none", None)]
    for codec in Codec:
        batch = build_batch(pairs, BatchSpec(codec=codec), headers=headers)
        opened.log.append_as_leader(batch, leader_epoch=EPOCH)
    opened.close()
    done = millstream("log", "dump", tmp_path / "events-0", "--records")
    assert done.code == 0
    told = "headers {'trace': 0x01, 'none': null}"
    for number, codec in enumerate(Codec):
        batch_line, *records = done.out.splitlines()[number * 4 : number * 4 + 4]
        first = number * 3
        assert f"codec {codec.name.lower()} " in batch_line
        assert records == [
            f"  {first} time 1000 key null value 'žluť' {told}",
            f"  {first + 1} time 1000 key '' value null {told}",
            f"  {first + 2} time 1000 key 0xff00 value '{'a' * 100}'... (500 bytes) {told}",
        ]


def test_transactions_and_producers(tmp_path: Path) -> None:
    opened = open_log(OsDisk(), ManualClock(), root=str(tmp_path))
    spec = BatchSpec(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=True)
    opened.log.append_as_leader(build_batch([(b"k", b"v")], spec), leader_epoch=EPOCH)
    for is_commit in (True, False):
        marker = build_marker(spec, is_commit=is_commit)
        opened.log.append_as_leader(marker, leader_epoch=EPOCH, origin=Origin.COORDINATOR)
    opened.close()
    lines = millstream("log", "dump", tmp_path / "events-0", "--records").out.splitlines()
    assert lines[0].endswith("producer 9/2 sequence 0 transactional")
    assert lines[2].endswith("control transactional")
    assert [lines[3], lines[5]] == ["  1 time 1000 commit marker", "  2 time 1000 abort marker"]


def test_damage_ends_the_dump_and_is_told(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=3)
    segment = partition / "00000000000000000000.log"
    flip_byte(segment, BATCH_BYTES + 70)
    done = millstream("log", "dump", partition)
    assert done.code == 1
    assert done.out.count("\n") == 1
    assert done.out.startswith("batch [0, 3)")
    assert done.err == f"millstream: {segment}: a batch with a wrong CRC at byte {BATCH_BYTES}\n"


def test_cut_batch_at_the_end_is_told(tmp_path: Path) -> None:
    partition = write_log(tmp_path, batches=3)
    segment = partition / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    done = millstream("log", "dump", partition, "--records")
    assert done.code == 1
    told = f"the file ends inside a batch at byte {2 * BATCH_BYTES}"
    assert done.err == f"millstream: {segment}: {told}\n"


def test_a_record_that_cannot_be_decoded_is_told(tmp_path: Path) -> None:
    """The CRC is right, what it covers is not."""
    partition = write_log(tmp_path, batches=1)
    segment = partition / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[61] = 0x7F  # the length of the first record
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    segment.write_bytes(data)
    done = millstream("log", "dump", partition, "--records")
    assert done.code == 1
    told = "a batch with a record that cannot be decoded at byte 0"
    assert done.err == f"millstream: {segment}: {told}\n"


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    """As in `millstream log dump ... | head -1`: far more is written than a pipe takes."""
    partition = write_log(tmp_path, batches=1_000)
    command = [sys.executable, "-m", "millstream.cli.main", "log", "dump", "--records"]
    with Popen([*command, partition], stdout=PIPE, stderr=PIPE, text=True) as dump:
        assert dump.stdout is not None
        assert dump.stderr is not None
        assert dump.stdout.readline().startswith("batch [0, 3)")
        dump.stdout.close()
        assert dump.stderr.read() == ""
    assert dump.returncode == 141


def test_a_pipe_in_place_of_a_segment_is_refused(tmp_path: Path) -> None:
    partition = write_log(tmp_path)
    pipe = partition / "00000000000000000900.log"
    os.mkfifo(pipe)
    done = millstream("log", "dump", partition)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"millstream: {pipe}: not a regular file\n"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    write_log(tmp_path)
    for path, reason in [
        (tmp_path / "missing", "no such directory"),
        (
            tmp_path,
            "not a partition directory, it has no segments; give the directory of one partition,"
            " such as data/topic-0",
        ),
    ]:
        done = millstream("log", "dump", path)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"millstream: {path}: {reason}\n"
    assert millstream("log", "dump", "").err == "millstream: the path is empty; give a directory\n"
