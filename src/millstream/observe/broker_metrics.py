"""The metrics of a broker, by the names that operators see.

Hot paths touch integers only (`apis`, `connections`); the rest is read at scrape time through
callbacks, so a topic or a partition costs nothing between scrapes.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream import __version__
from millstream.observe.api_counters import BUCKETS, OTHER_API, ApiCounters
from millstream.observe.loop_lag import BOUNDS_S, LoopLag
from millstream.observe.process import ProcessFacts
from millstream.observe.registry import Distribution, Kind, Labels, Readings, Registry

if TYPE_CHECKING:
    from millstream.observe.exposition import TextFormat

REASONS_MAX: Final = 32
"""Reasons counted by name: each is a time series, and callers choose their text."""

OTHER_REASON: Final = "other"


class TopicTotals(NamedTuple):
    """One topic's counters, summed over the partitions of this broker."""

    topic: str
    partitions: int
    messages_in: int
    bytes_in: int
    bytes_out: int
    log_bytes: int


class ConnectionCounters:
    """Counters of client connections, accepted to closed."""

    __slots__ = ("accepted", "closed_by_reason", "open", "refused_by_reason")

    def __init__(self) -> None:
        self.accepted = 0
        self.open = 0
        self.closed_by_reason: dict[str, int] = {}
        self.refused_by_reason: dict[str, int] = {}

    def opened(self) -> None:
        """A connection was accepted and kept."""
        self.accepted += 1
        self.open += 1

    def closed(self, reason: str) -> None:
        """A kept connection ended; `reason` is one of a few fixed words."""
        self.open -= 1
        _count(self.closed_by_reason, reason)

    def refused(self, reason: str) -> None:
        """A connection was closed at once, because of a limit."""
        _count(self.refused_by_reason, reason)


def _count(counts: dict[str, int], reason: str) -> None:
    if reason not in counts and len(counts) >= REASONS_MAX:
        reason = OTHER_REASON
    counts[reason] = counts.get(reason, 0) + 1


class BrokerMetrics(Registry):
    """One per broker. `apis`, `connections` and `loop_lag` are counted; the rest is registered."""

    def __init__(self, process: ProcessFacts | None = None) -> None:
        super().__init__()
        self.apis: Final = ApiCounters()
        self.connections: Final = ConnectionCounters()
        self.loop_lag: Final = LoopLag()
        self._register_apis()
        self._register_connections()
        self._register_loop_lag()
        if process is not None:
            self._register_process(process)
        self.register_labelled(
            "build_info",
            "Constant 1; the version is in the label",
            lambda: [((__version__,), 1)],
            label_names=["version"],
        )

    def exposition(self, text_format: "TextFormat") -> Iterator[bytes]:
        """All metrics as text, in chunks."""
        from millstream.observe.exposition import render  # not needed at start

        return render(self, text_format)

    def register_topics(self, read: Callable[[], Iterable[TopicTotals]]) -> None:
        """Per-topic families, all from one callback."""
        totals: list[TopicTotals] = []

        def refresh() -> None:
            totals[:] = read()

        self.before_scrape(refresh)
        for name, kind, help_text, pick in _TOPIC_FAMILIES:
            self.register_labelled(
                name, help_text, partial(_per_topic, totals, pick), kind=kind, label_names=["topic"]
            )

    def _register_apis(self) -> None:
        apis = self.apis
        for name, help_text, counts in (
            ("requests_total", "Requests answered", apis.requests),
            ("request_errors_total", "Error codes in responses", apis.errors),
            ("request_bytes_total", "Bytes of requests, frames included", apis.bytes_in),
            ("response_bytes_total", "Bytes of responses, frames included", apis.bytes_out),
        ):
            self.register_labelled(
                name,
                help_text,
                partial(self._per_api, counts),
                kind=Kind.COUNTER,
                label_names=["api"],
            )
        self.register_labelled(
            "request_latency_seconds",
            "Time from the receipt of the whole request until its response is passed to the socket,"
            " including the wait of a delayed fetch or produce",
            self._latencies,
            kind=Kind.HISTOGRAM,
            label_names=["api"],
        )

    def _seen(self) -> list[tuple[int, str]]:
        """(key, name) of every API that was used; the ninety others are left out."""
        return [(key, _api_name(key)) for key, count in enumerate(self.apis.requests) if count]

    def _per_api(self, counts: "array[int]") -> Readings:
        return [((name,), counts[key]) for key, name in self._seen()]

    def _latencies(self) -> Iterator[tuple[Labels, Distribution]]:
        apis = self.apis
        for key, name in self._seen():
            counts = apis.latency_counts[key * BUCKETS : (key + 1) * BUCKETS]
            yield (name,), Distribution(BOUNDS_S, counts, apis.latency_sum_us[key] / 1e6)

    def _register_connections(self) -> None:
        counters = self.connections
        self.register_gauge("connections", "Open connections", lambda: counters.open)
        self.register_counter(
            "connections_accepted_total", "Connections accepted", lambda: counters.accepted
        )
        for name, help_text, counts in (
            ("connections_closed_total", "Connections closed", counters.closed_by_reason),
            ("connections_refused_total", "Connections refused", counters.refused_by_reason),
        ):
            self.register_labelled(
                name,
                help_text,
                partial(_by_reason, counts),
                kind=Kind.COUNTER,
                label_names=["reason"],
            )

    def _register_loop_lag(self) -> None:
        lag = self.loop_lag
        self.register_labelled(
            "loop_lag_seconds",
            "Delay of the event loop's timers",
            lambda: [((), lag.distribution())],
            kind=Kind.HISTOGRAM,
            label_names=[],
        )
        self.register_gauge(
            "loop_lag_max_seconds",
            "Largest event-loop lag of the last one to two minutes",
            lag.max_s,
        )

    def _register_process(self, process: ProcessFacts) -> None:
        for name, help_text, read in (
            ("resident_memory_bytes", "Resident memory", process.resident_bytes),
            ("virtual_memory_bytes", "Virtual memory", process.virtual_bytes),
            ("open_fds", "Open file descriptors", process.open_descriptors),
            ("max_fds", "Limit of open file descriptors", process.descriptors_max),
        ):
            self.register_gauge(f"process_{name}", help_text, read)
        self.register_counter(
            "process_cpu_seconds_total", "CPU time, user and system", process.cpu_s
        )


def _per_topic(totals: list[TopicTotals], pick: Callable[[TopicTotals], int]) -> Readings:
    return [((one.topic,), pick(one)) for one in totals]


def _by_reason(counts: dict[str, int]) -> Readings:
    return [((reason,), count) for reason, count in sorted(counts.items())]


def _api_name(key: int) -> str:
    """Kafka's name of the API: `ListOffsets`."""
    # Imported at scrape time, not at start.
    from millstream.wire.api_keys import APIS, ApiKey
    from millstream.wire.catalogue import api_name

    return api_name(ApiKey(key)) if key in APIS and key != OTHER_API else "Unknown"


_TOPIC_FAMILIES: Final[tuple[tuple[str, Kind, str, Callable[[TopicTotals], int]], ...]] = (
    (
        "topic_messages_in_total",
        Kind.COUNTER,
        "Records appended to partitions led by this broker",
        lambda one: one.messages_in,
    ),
    (
        "topic_bytes_in_total",
        Kind.COUNTER,
        "Bytes of batches appended to partitions led by this broker",
        lambda one: one.bytes_in,
    ),
    (
        "topic_bytes_out_total",
        Kind.COUNTER,
        "Bytes of batches sent to consumers from partitions led by this broker",
        lambda one: one.bytes_out,
    ),
    (
        "topic_log_bytes",
        Kind.GAUGE,
        "Size of the logs of partitions led by this broker",
        lambda one: one.log_bytes,
    ),
    (
        "topic_partitions",
        Kind.GAUGE,
        "Partitions of the topic led by this broker",
        lambda one: one.partitions,
    ),
)
