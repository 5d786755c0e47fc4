"""Many record batches v2 into one set of Arrow-shaped columns. One description for both twins."""

from typing_extensions import Buffer

from millstream.kernels.column_types import DECODE_DEFAULTS, Decoded, DecodeOptions

__all__ = ["decode"]

def decode(
    buffer: Buffer, start: int, stop: int, options: DecodeOptions = DECODE_DEFAULTS
) -> Decoded:
    """The selected records of the batches in buffer[start:stop], and where decoding stopped.

    Decoding stops, without an error, where the buffer ends inside a batch (a fetch cuts its last
    one), at `end_offset`, or before the batch that would break `bytes_max` (never the first).
    The position is that of the batch it stopped at; calling again from there with
    `first_offset=next_offset` continues without a gap or a repeat. With no whole batch in the
    buffer nothing moves. The next offset skips offsets that hold no record.

    Records of control batches are among the rows, flagged; `batches` says which rows belong to
    which producer. A LogAppendTime record has its batch's time.

    A malformed batch raises MalformedRecords with the position of that batch, so the batches
    before it are what `decode(buffer, start, error.position)` gives. Beside the single batch, the
    offsets of consecutive batches must increase. Batches below `first_offset` are skipped after
    reading only their header. Without `with_headers` the bytes after a record's value are not read.
    """
