"""Errors of column writers, in addition to those of `client/errors.py`."""

from typing import Self

from millstream.client.errors import ClientError, DeadlinePassed, describe_failure, seconds
from millstream.wire.errors import ErrorCode


class OutcomeOpen(DeadlinePassed):
    """Records that were sent and not acknowledged in time: they may or may not be stored."""

    def __init__(self, what: str, *, within_s: float, last_error: object = None) -> None:
        super().__init__(what, within_s=within_s, last_error=last_error)
        last = f" (last error: {describe_failure(last_error)})" if last_error is not None else ""
        self.args = (
            f"{what}: not acknowledged within {seconds(within_s)} s{last}; the records may still"
            " have been stored; check that the brokers are healthy, or raise delivery.timeout.ms",
        )


class ColumnInvalid(ClientError):
    """A column that cannot be written; nothing of the batch was written."""

    def __init__(self, column: str, why: str) -> None:
        self.column = column
        super().__init__(f"column {column!r}: {why}")


class RowInvalid(ClientError):
    """A row that cannot become a record; nothing of the batch was written."""

    def __init__(self, row: int, why: str) -> None:
        self.row, self.why = row, why
        super().__init__(f"row {row}: {why}")

    def moved(self, by: int) -> Self:
        """The same error with the row number shifted."""
        self.row += by
        self.args = (f"row {self.row}: {self.why}",)
        return self


class PartitionInvalid(RowInvalid):
    """A row names a partition that its topic does not have."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __init__(self, row: int, *, topic: str, partition: int, partition_count: int) -> None:
        self.topic, self.partition = topic, partition
        super().__init__(
            row, f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {partition}"
        )


class WriterBroken(ClientError):
    """A bug of ours while rows were sent; the writer cannot be used any more."""

    def __init__(self, bug: Exception) -> None:
        self.__cause__ = bug
        super().__init__(
            f"the writer failed ({type(bug).__name__}: {bug}); which of the unflushed rows are"
            " stored is unknown; report this bug, and use a new writer"
        )


class BufferFull(ClientError):
    """Brokers accept records more slowly than they are written, for longer than allowed."""

    def __init__(self, *, within_s: float, bytes_max: int, last_error: object = None) -> None:
        last = f"; last error: {describe_failure(last_error)}" if last_error is not None else ""
        super().__init__(
            f"the send buffer of {bytes_max} bytes stayed full for {seconds(within_s)} s{last};"
            " check that the brokers are healthy, or raise buffer.memory or max.block.ms"
        )
