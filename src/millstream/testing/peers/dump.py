"""What Kafka's DumpLogSegments prints, as values; no process is started here.

The tool exits with 0 although it found a broken index or batch, and reports that in lines between
its output: every such line becomes a complaint.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class DumpedRecord(NamedTuple):
    """One record; `key` and `payload` as the tool's UTF-8 decoder shows them."""

    offset: int
    timestamp_type: str
    timestamp_ms: int
    key_bytes: int
    value_bytes: int
    sequence: int
    header_keys: tuple[str, ...]
    key: str | None
    payload: str | None
    end_txn_marker: str | None
    coordinator_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """One batch header, and its records when the dump was deep."""

    base_offset: int
    last_offset: int
    count: int | None
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int
    timestamp_type: str
    max_timestamp_ms: int
    size: int
    magic: int
    codec: str
    crc: int
    is_valid: bool
    records: list[DumpedRecord] = field(default_factory=list)


class IndexEntry(NamedTuple):
    """One entry of an offset index."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """One entry of a time index."""

    timestamp_ms: int
    offset: int


class AbortedTransaction(NamedTuple):
    """One entry of a transaction index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class DumpedProducer(NamedTuple):
    """One producer of a snapshot; the last five are -1 for one that has only markers."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    current_txn_first_offset: int | None
    last_timestamp_ms: int
    first_sequence: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = -1
    timestamp_ms: int = -1


@dataclass(slots=True)
class DumpedFile:
    """The dump of one file; only the lists of its own kind have entries."""

    path: str
    batches: list[DumpedBatch] = field(default_factory=list)
    index: list[IndexEntry] = field(default_factory=list)
    time_index: list[TimeIndexEntry] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: list[DumpedProducer] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[DumpedRecord]:
        return [record for batch in self.batches for record in batch.records]


@dataclass(slots=True)
class Dump:
    """One run of the tool. `gaps` are jumps between record offsets, normal after compaction."""

    files: dict[str, DumpedFile] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def file(self, path: object) -> DumpedFile:
        return self.files[str(path)]


_BATCH: Final = re.compile(
    r"baseOffset: (?P<base_offset>-?\d+) lastOffset: (?P<last_offset>-?\d+)"
    r" count: (?P<count>-?\d+|null) baseSequence: (?P<base_sequence>-?\d+)"
    r" lastSequence: (?P<last_sequence>-?\d+) producerId: (?P<producer_id>-?\d+)"
    r" producerEpoch: (?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>-?\d+)"
    r" isTransactional: (?P<is_transactional>true|false) isControl: (?P<is_control>true|false)"
    r" deleteHorizonMs: (?P<delete_horizon_ms>\S+) position: (?P<position>\d+)"
    r" (?P<timestamp_type>\w+): (?P<max_timestamp_ms>-?\d+) size: (?P<size>\d+)"
    r" magic: (?P<magic>\d+) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+)"
    r" isvalid: (?P<is_valid>true|false)"
)
_RECORD: Final = re.compile(
    r"\| offset: (\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r" sequence: (-?\d+) headerKeys: \[(.*?)\](.*)",
    re.DOTALL,
)
_MARKER: Final = re.compile(r" endTxnMarker: (\w+) coordinatorEpoch: (-?\d+)")
_INDEX: Final = re.compile(r"offset: (\d+) position: (\d+)")
_TIME_INDEX: Final = re.compile(r"timestamp: (-?\d+) offset: (\d+)")
_ABORTED: Final = re.compile(
    r"version: (\d+) producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)"
    r" lastStableOffset: (\d+)"
)
_PRODUCER: Final = re.compile(
    r"producerId: (-?\d+) producerEpoch: (-?\d+) coordinatorEpoch: (-?\d+)"
    r" currentTxnFirstOffset: (\S+) lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+)"
    r" offsetDelta: (-?\d+) timestamp: (-?\d+))?"
)
_OPTIONAL_NUMBER: Final = re.compile(r"Optional(?:Long)?\[(-?\d+)\]")
_REMARK: Final = re.compile(r"Log starting offset: \d+|.* is empty\.|.* passed sanity check\.")
_FILE_PREFIX: Final = "Dumping "
_STARTS_LINE: Final = ("baseOffset: ", "| offset: ", "Found ", _FILE_PREFIX)
_GAPS_PREFIX: Final = "Non-consecutive offsets in "
_GAP: Final = re.compile(r"  (-?\d+) is followed by (\d+)")
_NOT_THE_TOOL: Final = "Picked up "  # the JVM repeating its environment variables


def parse_dump(stdout: str, stderr: str, exit_code: int) -> Dump:
    """One run of the tool as values."""
    dump = Dump()
    _parse_errors(stderr.splitlines(), dump)
    if exit_code != 0:
        dump.complaints.append(f"the tool ended with {exit_code}")
    current = DumpedFile("")
    for line in _whole_lines(stdout):
        if line.startswith(_FILE_PREFIX):
            current = dump.files.setdefault(
                line.removeprefix(_FILE_PREFIX), DumpedFile(line.removeprefix(_FILE_PREFIX))
            )
        elif not _parse_line(line, current):
            dump.complaints.append(f"{current.path}: {line}")
    dump.complaints += [
        f"{file.path}: batch at {batch.position} is not valid"
        for file in dump.files.values()
        for batch in file.batches
        if not batch.is_valid
    ]
    return dump


def _parse_errors(lines: Iterable[str], dump: Dump) -> None:
    gaps_of: str | None = None
    for line in lines:
        gap = _GAP.fullmatch(line)
        if line.startswith(_GAPS_PREFIX):
            gaps_of = line.removeprefix(_GAPS_PREFIX)
        elif gap is not None and gaps_of is not None:
            # The tool expects every file to begin with offset 0, so the first record of any other
            # segment is reported as a gap after -1.
            if gap[1] != "-1":
                dump.gaps.append(f"{gaps_of}: {line.strip()}")
        elif line.strip() and not line.startswith(_NOT_THE_TOOL):
            gaps_of = None
            dump.complaints.append(line)


def _whole_lines(stdout: str) -> Iterable[str]:
    """Lines, with those of a record joined again where its key or payload has line ends."""
    pending: str | None = None
    for line in stdout.removesuffix("\n").split("\n"):
        if pending is not None and not line.startswith(_STARTS_LINE):
            pending = f"{pending}\n{line}"
            continue
        if pending is not None:
            yield pending
        pending = line if line.startswith("| offset: ") else None
        if pending is None and line:
            yield line
    if pending is not None:
        yield pending


def _parse_line(line: str, file: DumpedFile) -> bool:
    """Whether the line was understood; it is then in `file`."""
    if found := _RECORD.fullmatch(line):
        if not file.batches:
            return False
        file.batches[-1].records.append(_record(found))
    elif found := _BATCH.fullmatch(line):
        file.batches.append(_batch(found))
    elif found := _INDEX.fullmatch(line):
        file.index.append(IndexEntry(*map(int, found.groups())))
    elif found := _TIME_INDEX.fullmatch(line):
        file.time_index.append(TimeIndexEntry(*map(int, found.groups())))
    elif found := _ABORTED.fullmatch(line):
        file.aborted.append(AbortedTransaction(*map(int, found.groups())))
    elif found := _PRODUCER.fullmatch(line):
        file.producers.append(_producer(found))
    elif _REMARK.fullmatch(line):
        file.remarks.append(line)
    else:
        return False
    return True


def _batch(found: re.Match[str]) -> DumpedBatch:
    return DumpedBatch(
        base_offset=int(found["base_offset"]),
        last_offset=int(found["last_offset"]),
        count=None if found["count"] == "null" else int(found["count"]),
        base_sequence=int(found["base_sequence"]),
        last_sequence=int(found["last_sequence"]),
        producer_id=int(found["producer_id"]),
        producer_epoch=int(found["producer_epoch"]),
        leader_epoch=int(found["leader_epoch"]),
        is_transactional=found["is_transactional"] == "true",
        is_control=found["is_control"] == "true",
        delete_horizon_ms=_optional_number(found["delete_horizon_ms"]),
        position=int(found["position"]),
        timestamp_type=found["timestamp_type"],
        max_timestamp_ms=int(found["max_timestamp_ms"]),
        size=int(found["size"]),
        magic=int(found["magic"]),
        codec=found["codec"],
        crc=int(found["crc"]),
        is_valid=found["is_valid"] == "true",
    )


def _record(found: re.Match[str]) -> DumpedRecord:
    offset, timestamp_type, timestamp, key_size, value_size, sequence, headers, rest = (
        found.groups()
    )
    marker = _MARKER.fullmatch(rest)
    key, payload = (None, None) if marker else _contents(rest, int(key_size))
    return DumpedRecord(
        offset=int(offset),
        timestamp_type=timestamp_type,
        timestamp_ms=int(timestamp),
        key_bytes=int(key_size),
        value_bytes=int(value_size),
        sequence=int(sequence),
        header_keys=tuple(headers.split(",")) if headers else (),
        key=key,
        payload=payload,
        end_txn_marker=marker[1] if marker else None,
        coordinator_epoch=int(marker[2]) if marker else None,
    )


def _contents(rest: str, key_bytes: int) -> tuple[str | None, str | None]:
    """Key and payload. The key ends after its size, unless it was not valid UTF-8."""
    key: str | None = None
    if rest.startswith(" key: "):
        tail = rest.removeprefix(" key: ")
        key = tail.encode()[:key_bytes].decode(errors="replace")
        if tail[len(key) :] and not tail[len(key) :].startswith(" payload: "):
            key = tail.partition(" payload: ")[0]
        rest = tail[len(key) :]
    return key, rest.removeprefix(" payload: ") if rest.startswith(" payload: ") else None


def _producer(found: re.Match[str]) -> DumpedProducer:
    producer_id, producer_epoch, coordinator_epoch, transaction, timestamp = found.groups()[:5]
    producer = DumpedProducer(
        producer_id=int(producer_id),
        producer_epoch=int(producer_epoch),
        coordinator_epoch=int(coordinator_epoch),
        current_txn_first_offset=_optional_number(transaction),
        last_timestamp_ms=int(timestamp),
    )
    if found[6] is None:
        return producer
    return producer._replace(
        first_sequence=int(found[6]),
        last_sequence=int(found[7]),
        last_offset=int(found[8]),
        offset_delta=int(found[9]),
        timestamp_ms=int(found[10]),
    )


def _optional_number(text: str) -> int | None:
    found = _OPTIONAL_NUMBER.fullmatch(text)
    return int(found[1]) if found else None
