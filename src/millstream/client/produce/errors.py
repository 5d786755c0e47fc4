"""What can go wrong for a writer of columns, beside what `client/errors.py` has."""

from typing import Self

from millstream.client.errors import ClientError, DeadlinePassed, seconds, told
from millstream.wire.errors import ErrorCode


class OutcomeOpen(DeadlinePassed):
    """Records that were sent and not acknowledged in time: they may be stored, or not."""

    def __init__(self, what: str, *, within_s: float, last_error: object = None) -> None:
        super().__init__(what, within_s=within_s, last_error=last_error)
        last = f" (the last attempt met: {told(last_error)})" if last_error is not None else ""
        self.args = (
            f"{what}: not acknowledged within {seconds(within_s)} s{last}; they may be stored all"
            " the same; see whether the brokers are well, or allow more time (delivery.timeout.ms)",
        )


class ColumnInvalid(ClientError):
    """A column that records cannot be made of; nothing of the batch was written."""

    def __init__(self, column: str, why: str) -> None:
        self.column = column
        super().__init__(f"column {column!r}: {why}")


class RowInvalid(ClientError):
    """A row that no record can be made of; nothing of the batch was written."""

    def __init__(self, row: int, why: str) -> None:
        self.row, self.why = row, why
        super().__init__(f"row {row}: {why}")

    def moved(self, by: int) -> Self:
        """The same for a row that was counted from there."""
        self.row += by
        self.args = (f"row {self.row}: {self.why}",)
        return self


class PartitionInvalid(RowInvalid):
    """A row asks for a partition that its topic does not have."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __init__(self, row: int, *, topic: str, partition: int, partition_count: int) -> None:
        self.topic, self.partition = topic, partition
        super().__init__(
            row, f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {partition}"
        )


class WriterBroken(ClientError):
    """A bug of ours while rows were sent; the writer is of no use any more."""

    def __init__(self, bug: Exception) -> None:
        self.__cause__ = bug
        super().__init__(
            f"the writer broke ({type(bug).__name__}: {bug}); which of the rows that were not"
            " flushed are stored is not known; report it, and write with a new writer"
        )


class BufferFull(ClientError):
    """Brokers take records more slowly than they are written, for longer than allowed."""

    def __init__(self, *, within_s: float, bytes_max: int, last_error: object = None) -> None:
        last = f"; the last attempt met: {told(last_error)}" if last_error is not None else ""
        super().__init__(
            f"no room among {bytes_max} bytes that wait to be sent, for {seconds(within_s)}"
            f" s{last}; see whether the brokers are well, or allow more (buffer.memory,"
            " max.block.ms)"
        )
