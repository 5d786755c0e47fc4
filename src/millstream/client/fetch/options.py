"""What can be said about a read beside what is read."""

from dataclasses import dataclass, replace
from typing import Final

from millstream.client.fetch.chunks import FetchLimits
from millstream.client.settings import ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """None is what the client's settings say."""

    timeout_s: float | None = None
    """How long a read may go without coming a step further, and a leader be looked for
    (`default.api.timeout.ms`). A read without an end waits for new records for ever."""
    is_committed: bool | None = None
    batch_bytes: int | None = None
    """Of records in one Arrow batch, aimed at."""
    batch_rows_max: int | None = None
    prefetch_bytes_max: int | None = None
    partition_bytes_max: int | None = None

    def limits(self, settings: ClientSettings) -> FetchLimits:
        """With the settings for what is not said here."""
        found = FetchLimits.of(settings, is_committed=self.is_committed)
        said = {
            name: value
            for name in ("prefetch_bytes_max", "partition_bytes_max")
            if (value := getattr(self, name)) is not None
        }
        return replace(found, **said) if said else found


NO_OPTIONS: Final = ReadOptions()
