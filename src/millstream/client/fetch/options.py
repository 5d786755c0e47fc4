"""What can be said about a read beside what is read."""

from dataclasses import dataclass, replace
from typing import Final

from millstream.client.fetch.chunks import FetchLimits
from millstream.client.settings import ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """None: as in the client's settings."""

    timeout_s: float | None = None
    """How long a read may make no progress, and a leader search may take
    (`default.api.timeout.ms`). A read without an end waits for new records forever."""
    is_committed: bool | None = None
    batch_bytes: int | None = None
    """Target size of one Arrow batch."""
    batch_rows_max: int | None = None
    prefetch_bytes_max: int | None = None
    partition_bytes_max: int | None = None

    def limits(self, settings: ClientSettings) -> FetchLimits:
        """With the settings for options that are None."""
        found = FetchLimits.of(settings, is_committed=self.is_committed)
        given = {
            name: value
            for name in ("prefetch_bytes_max", "partition_bytes_max")
            if (value := getattr(self, name)) is not None
        }
        return replace(found, **given) if given else found


NO_OPTIONS: Final = ReadOptions()
