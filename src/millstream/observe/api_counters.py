"""Requests per API as integers in arrays, so that counting costs next to nothing.

The arrays are flat and of fixed size: compiled code acquires them as buffers once and adds to them
without calling back into Python.
"""

from array import array
from bisect import bisect_left
from typing import Final

API_SLOTS: Final = 128
"""Kafka's keys are below 100. The last slot is for every key that does not fit."""

OTHER_API: Final = API_SLOTS - 1

BUCKET_BOUNDS_US: Final = (
    *(50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000),
    *(100_000, 200_000, 500_000, 1_000_000, 5_000_000),
)
"""Inclusive upper bounds, from a cached read to a long poll. The last bucket is for slower ones."""

BUCKETS: Final = len(BUCKET_BOUNDS_US) + 1


class ApiCounters:
    """Counters of one broker, indexed by API key.

    `latency_counts[api_key * BUCKETS + n]` counts the answers of bucket `n` only; the cumulative
    counts of Prometheus are computed at scrape time.
    """

    __slots__ = ("bytes_in", "bytes_out", "errors", "latency_counts", "latency_sum_us", "requests")

    def __init__(self) -> None:
        self.requests = array("q", bytes(8 * API_SLOTS))
        self.errors = array("q", bytes(8 * API_SLOTS))
        self.bytes_in = array("q", bytes(8 * API_SLOTS))
        self.bytes_out = array("q", bytes(8 * API_SLOTS))
        self.latency_sum_us = array("q", bytes(8 * API_SLOTS))
        self.latency_counts = array("q", bytes(8 * API_SLOTS * BUCKETS))

    def observe(
        self, api_key: int, latency_us: int, bytes_in: int, bytes_out: int, errors: int
    ) -> None:
        """Count one answered request; `errors` is the number of errors in its answer."""
        self.observe_many(api_key, 1, latency_us, bytes_in, bytes_out, errors)

    def observe_many(
        self,
        api_key: int,
        requests: int,
        latency_us: int,
        bytes_in: int,
        bytes_out: int,
        errors: int,
    ) -> None:
        """Count requests that were answered together, each with the same latency."""
        # A negative key would index from the end, a large one would raise.
        if not 0 <= api_key < OTHER_API:
            api_key = OTHER_API
        self.requests[api_key] += requests
        self.bytes_in[api_key] += bytes_in
        self.bytes_out[api_key] += bytes_out
        self.latency_sum_us[api_key] += requests * latency_us
        bucket = api_key * BUCKETS + bisect_left(BUCKET_BOUNDS_US, latency_us)
        self.latency_counts[bucket] += requests
        if errors:
            self.errors[api_key] += errors
