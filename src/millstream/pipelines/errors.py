"""Errors of the source and the sink; each message says how to continue.

Spark passes errors between processes, so all can be pickled: their arguments are their fields.
"""

from typing import Final

from millstream.model.errors import OperatingError

SHOWN_VALUE_LENGTH_MAX: Final = 300
"""Offsets of thousands of partitions would hide the rest of the message."""


def shown(value: str) -> str:
    """`value` as it is shown in a message."""
    if len(value) <= SHOWN_VALUE_LENGTH_MAX:
        return value
    return f"{value[:SHOWN_VALUE_LENGTH_MAX]}... ({len(value)} characters)"


class PipelineError(OperatingError):
    """Base of errors that stop a query and that its author can fix."""


class OptionsInvalid(PipelineError):
    """An option that is missing, malformed, or does not fit the others or the kind of query."""

    def __init__(self, option: str, value: str | None, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option, self.value, self.reason = option, value, reason

    def __str__(self) -> str:
        if self.value is None:
            return f"option '{self.option}' is not set: {self.reason}"
        return f"option '{self.option}' is '{shown(self.value)}': {self.reason}"


class OffsetsInvalid(PipelineError):
    """Text that is not offsets, timestamps or partitions in the JSON that was expected."""

    def __init__(self, reason: str, text: str, example: str) -> None:
        super().__init__(reason, text, example)
        self.reason, self.text, self.example = reason, text, example

    def __str__(self) -> str:
        return f"{self.reason}; expected e.g. {self.example}, got {shown(self.text)}"


class SchemaInvalid(PipelineError):
    """Columns that cannot be read from, or written to, a topic."""


class RangeInvalid(PipelineError):
    """The start of a query does not fit its end, or the existing partitions."""


class DataLost(PipelineError):
    """Records that the query should have read are lost, and `failOnDataLoss` is true."""


class ReadStalled(PipelineError):
    """Existing records were not returned in time."""

    def __init__(self, partition: str, offset: int, within_ms: int) -> None:
        super().__init__(partition, offset, within_ms)
        self.partition, self.offset, self.within_ms = partition, offset, within_ms

    def __str__(self) -> str:
        return (
            f"no records of {self.partition} from offset {self.offset} were received within "
            f"{self.within_ms} ms, although there are some; check that the brokers are healthy, "
            "or allow more time with the option kafkaConsumer.pollTimeoutMs"
        )
