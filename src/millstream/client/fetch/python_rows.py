"""Records as Python values, without pyarrow: for the command line.

Columns are made on request, as lists: quicker than Arrow's `to_pylist`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from millstream.client.fetch.aborted import Visibility
from millstream.client.fetch.blocking import ChunkIterator
from millstream.client.fetch.chunks import Chunk, ReadRange
from millstream.client.fetch.options import NO_OPTIONS
from millstream.client.fetch.parts import BATCH_BYTES, decoded_parts
from millstream.client.fetch.ranges import checked_ranges
from millstream.client.fetch.texts import MILLIS_MAX, java_text
from millstream.kernels.columns import (
    FLAG_LOG_APPEND_TIME,
    BinaryColumn,
    Decoded,
    DecodeOptions,
)
from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from millstream.client.blocking import BlockingClient

Header = tuple[str, bytes | None]


class PythonRows(NamedTuple):
    """Rows [start, stop) of one decoded part of a chunk."""

    partition: TopicPartition
    decoded: Decoded
    start: int
    stop: int

    @property
    def next_offset(self) -> Offset:
        """Where to continue after these rows."""
        if self.stop == self.decoded.columns.rows:
            return Offset(self.decoded.next_offset)
        return Offset(self.offsets()[-1] + 1)

    @property
    def row_count(self) -> int:
        return self.stop - self.start

    def first(self, count: int) -> "PythonRows":
        """The first `count` rows."""
        return self._replace(stop=min(self.stop, self.start + count))

    def keys(self) -> list[bytes | None]:
        return _texts(self.decoded.columns.keys, self.start, self.stop)

    def values(self) -> list[bytes | None]:
        return _texts(self.decoded.columns.values, self.start, self.stop)

    def offsets(self) -> list[int]:
        return memoryview(self.decoded.offsets).cast("B").cast("q")[self.start : self.stop].tolist()

    def timestamps_ms(self) -> list[int]:
        times = memoryview(self.decoded.columns.timestamps).cast("B").cast("q")
        return [
            min(max(one, -MILLIS_MAX), MILLIS_MAX) for one in times[self.start : self.stop].tolist()
        ]

    def are_append_times(self) -> list[bool]:
        """Whether the timestamp is LogAppendTime, and not CreateTime."""
        flags = memoryview(self.decoded.flags).cast("B")[self.start : self.stop]
        return [bool(one & FLAG_LOG_APPEND_TIME) for one in flags]

    def headers(self) -> list[list[Header]]:
        column = self.decoded.columns.headers
        if column is None or not column.rows:
            return [[] for _ in range(self.row_count)]
        first = column.first + self.start
        ends = (
            memoryview(column.list_offsets).cast("B").cast("i")[first : first + self.row_count + 1]
        )
        pairs = list(
            zip(
                map(_name, _texts(column.keys, 0, column.rows)),
                _texts(column.values, 0, column.rows),
                strict=True,
            )
        )
        return [pairs[begin:end] for begin, end in pairwise(ends.tolist())]


def _name(key: bytes | None) -> str:
    key = key or b""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return java_text(key)


def _texts(column: BinaryColumn | None, start: int, stop: int) -> list[bytes | None]:
    if column is None:
        return [None] * (stop - start)
    first = column.first + start
    offsets = memoryview(column.offsets).cast("B").cast("i")[first : first + stop - start + 1]
    ends = offsets.tolist()
    data = bytes(memoryview(column.data)[ends[0] : ends[-1]])
    base = ends[0]
    if base:
        ends = [one - base for one in ends]
    texts: list[bytes | None] = [data[begin:end] for begin, end in pairwise(ends)]
    if column.validity is not None:
        bits = memoryview(column.validity).cast("B")
        for row in range(len(texts)):
            at = first + row
            if not bits[at >> 3] >> (at & 7) & 1:
                texts[row] = None
    return texts


class PythonDecoder:
    """Decodes the chunks of one read. Implements `ChunkDecoder`."""

    def __init__(self, *, with_headers: bool, checks_crcs: bool) -> None:
        self._with_headers = with_headers
        self._checks_crcs = checks_crcs

    def batches(self, chunk: Chunk) -> Iterator[PythonRows]:
        """At least one unless the chunk has no visible rows. Raises RecordsUnreadable."""
        visibility = Visibility(chunk.aborted)
        for decoded in decoded_parts(chunk, self._options):
            for start, stop in visibility.seen(decoded):
                yield PythonRows(chunk.partition, decoded, start, stop)

    def _options(self, first_offset: Offset, end_offset: Offset) -> DecodeOptions:
        return DecodeOptions(
            first_offset=first_offset,
            end_offset=end_offset,
            with_headers=self._with_headers,
            check_crc=self._checks_crcs,
            batch_bytes_max=DECOMPRESSED_BATCH_BYTES_MAX,
            bytes_max=BATCH_BYTES,
        )


def read_python_rows(
    client: "BlockingClient", ranges: Sequence[ReadRange], *, with_headers: bool
) -> ChunkIterator[PythonRows]:
    """Rows of all ranges as they arrive. Raises errors of the ranges at once."""
    decoder = PythonDecoder(with_headers=with_headers, checks_crcs=client.settings.check_crcs)
    return ChunkIterator(client, checked_ranges(ranges), decoder, NO_OPTIONS)
