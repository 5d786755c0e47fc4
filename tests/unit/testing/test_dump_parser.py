"""What Kafka's dump tool says, understood without running it."""

import pytest

from millstream.testing.peers.dump import (
    AbortedTransaction,
    DumpedProducer,
    IndexEntry,
    TimeIndexEntry,
    parse_dump,
)

BATCH = (
    "baseOffset: 5 lastOffset: 7 count: 3 baseSequence: 2 lastSequence: 4 producerId: 9"
    " producerEpoch: 1 partitionLeaderEpoch: 6 isTransactional: true isControl: false"
    " deleteHorizonMs: OptionalLong.empty position: 201 CreateTime: 1700000000123 size: 99"
    " magic: 2 compresscodec: zstd crc: 2679379366 isvalid: true"
)
RECORD = (
    "| offset: 5 CreateTime: 1700000000100 keySize: 3 valueSize: 5 sequence: 2"
    " headerKeys: [a,b] key: abc payload: hello"
)
MARKER = (
    "| offset: 7 CreateTime: 1700000000123 keySize: 4 valueSize: 6 sequence: -1 headerKeys: []"
    " endTxnMarker: ABORT coordinatorEpoch: 3"
)


def record_line(rest: str, *, key_bytes: int = -1, value_bytes: int = -1) -> str:
    return (
        f"| offset: 0 CreateTime: 1 keySize: {key_bytes} valueSize: {value_bytes}"
        f" sequence: -1 headerKeys: []{rest}"
    )


def dump_of(*lines: str) -> str:
    return "\n".join(["Dumping /d/0.log", "Log starting offset: 0", *lines, ""])


def test_batch_with_records_is_read_whole() -> None:
    dump = parse_dump(dump_of(BATCH, RECORD, MARKER), "", 0)
    (batch,) = dump.file("/d/0.log").batches
    assert not dump.complaints
    assert (batch.base_offset, batch.last_offset, batch.count) == (5, 7, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.leader_epoch) == (9, 1, 6)
    assert (batch.base_sequence, batch.last_sequence) == (2, 4)
    assert batch.is_transactional
    assert not batch.is_control
    assert batch.delete_horizon_ms is None
    assert (batch.position, batch.size, batch.crc) == (201, 99, 2679379366)
    assert (batch.magic, batch.codec, batch.max_timestamp_ms) == (2, "zstd", 1700000000123)
    record, marker = batch.records
    assert record.header_keys == ("a", "b")
    assert (record.key, record.payload, record.sequence) == ("abc", "hello", 2)
    assert (marker.end_txn_marker, marker.coordinator_epoch) == ("ABORT", 3)
    assert (marker.key, marker.payload, marker.header_keys) == (None, None, ())


def test_delete_horizon_is_a_number_where_it_is_set() -> None:
    line = BATCH.replace("OptionalLong.empty", "OptionalLong[1794779991561]")
    dump = parse_dump(dump_of(line), "", 0)
    assert dump.file("/d/0.log").batches[0].delete_horizon_ms == 1794779991561


@pytest.mark.parametrize(
    ("rest", "key_bytes", "value_bytes", "key", "payload"),
    [
        ("", -1, -1, None, None),
        (" key: k", 1, -1, "k", None),
        (" payload: p", -1, 1, None, "p"),
        (" key:  payload: ", 0, 0, "", ""),
        (" key: a payload: b payload: c", 12, 1, "a payload: b", "c"),
        (" key: grün payload: zwei\nZeilen\n", 5, 12, "grün", "zwei\nZeilen\n"),
        (" key: \ufffd\ufffd payload: x", 2, 1, "\ufffd\ufffd", "x"),
        (" key: one\ntwo", 7, -1, "one\ntwo", None),
    ],
)
def test_key_and_payload_are_told_apart(
    rest: str, key_bytes: int, value_bytes: int, key: str | None, payload: str | None
) -> None:
    line = record_line(rest, key_bytes=key_bytes, value_bytes=value_bytes)
    dump = parse_dump(dump_of(BATCH, line, RECORD), "", 0)
    first, second = dump.file("/d/0.log").records
    assert (first.key, first.payload) == (key, payload)
    assert second.payload == "hello"
    assert not dump.complaints


def test_indexes_and_snapshots_are_read() -> None:
    stdout = "\n".join(
        [
            "Dumping /d/0.index",
            "offset: 64 position: 4136",
            "Dumping /d/0.timeindex",
            "timestamp: 1794779991647 offset: 59",
            "Dumping /d/0.txnindex",
            "version: 0 producerId: 3 firstOffset: 2 lastOffset: 13 lastStableOffset: 1",
            "Dumping /d/9.snapshot",
            "producerId: 3 producerEpoch: 0 coordinatorEpoch: -1"
            " currentTxnFirstOffset: OptionalLong[2] lastTimestamp: 17 firstSequence: 3"
            " lastSequence: 4 lastOffset: 9 offsetDelta: 1 timestamp: 16",
            "producerId: 4 producerEpoch: 1 coordinatorEpoch: 5"
            " currentTxnFirstOffset: OptionalLong.empty lastTimestamp: 18",
            "Dumping /d/1.index",
            "/d/1.index is empty.",
            "Dumping /d/2.index",
            "/d/2.index passed sanity check.",
            "",
        ]
    )
    dump = parse_dump(stdout, "", 0)
    assert dump.complaints == []
    assert dump.file("/d/0.index").index == [IndexEntry(64, 4136)]
    assert dump.file("/d/0.timeindex").time_index == [TimeIndexEntry(1794779991647, 59)]
    assert dump.file("/d/0.txnindex").aborted == [AbortedTransaction(0, 3, 2, 13, 1)]
    assert dump.file("/d/9.snapshot").producers == [
        DumpedProducer(3, 0, -1, 2, 17, 3, 4, 9, 1, 16),
        DumpedProducer(4, 1, 5, None, 18),
    ]
    assert dump.file("/d/1.index").remarks == ["/d/1.index is empty."]


@pytest.mark.parametrize(
    ("stdout", "stderr", "exit_code"),
    [
        (dump_of(BATCH.replace("isvalid: true", "isvalid: false")), "", 0),
        (dump_of(BATCH, "Found 17 invalid bytes at the end of 0.log"), "", 0),
        (dump_of(RECORD), "", 0),
        (dump_of("offset: 5 position: 0 CreateTime: 1 size: 9 magic: 1 isvalid: true"), "", 0),
        (dump_of("something new"), "", 0),
        (dump_of(), "Mismatches in :/d/0.index\n  Index offset: 1, log offset: 2\n", 0),
        (dump_of(), "Found timestamp mismatch in :/d/0.timeindex\n", 0),
        (dump_of(), "Found out of order timestamp in :/d/0.timeindex\n", 0),
        (dump_of(), "The following indexed offsets are not found in the log.\n", 0),
        (dump_of(), 'Exception in thread "main" java.lang.Oops\n\tat Some.where\n', 0),
        (dump_of(), "", 1),
    ],
)
def test_whatever_the_tool_dislikes_is_a_complaint(
    stdout: str, stderr: str, exit_code: int
) -> None:
    assert parse_dump(stdout, stderr, exit_code).complaints


def test_gaps_are_kept_apart_and_a_first_offset_is_no_gap() -> None:
    stderr = (
        "Non-consecutive offsets in /d/9.log\n  -1 is followed by 9\n"
        "Non-consecutive offsets in /d/0.log\n  3 is followed by 8\n"
    )
    dump = parse_dump(dump_of(), stderr, 0)
    assert dump.complaints == []
    assert dump.gaps == ["/d/0.log: 3 is followed by 8"]


def test_words_of_the_virtual_machine_are_not_the_tools() -> None:
    assert not parse_dump(dump_of(), "Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n", 0).complaints
