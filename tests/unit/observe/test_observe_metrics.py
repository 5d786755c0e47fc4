"""Counters, the registry and the two text formats, read back by prometheus-client's parsers."""

import asyncio
import os
from bisect import bisect_left
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import openmetrics, parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

from kits.paths import DOCS
from millstream.observe.api_counters import (
    API_SLOTS,
    BUCKET_BOUNDS_US,
    BUCKETS,
    OTHER_API,
    ApiCounters,
)
from millstream.observe.broker_metrics import REASONS_MAX, BrokerMetrics, TopicTotals
from millstream.observe.exposition import TextFormat, choose_format, render
from millstream.observe.loop_lag import LoopLag, LoopLagSampler
from millstream.observe.process import LinuxProcess
from millstream.observe.registry import Distribution, Kind, Registry
from millstream.testing.sim.virtual_loop import run

BOTH = pytest.mark.parametrize("text_format", list(TextFormat))
DOCUMENTATION = DOCS / "metrics.md"


def text_of(registry: Registry, text_format: TextFormat) -> str:
    return b"".join(render(registry, text_format)).decode()


def parsed(registry: Registry, text_format: TextFormat) -> dict[str, Metric]:
    text = text_of(registry, text_format)
    families: Iterable[Metric]
    if text_format is TextFormat.OPENMETRICS:
        families = openmetrics_parser.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    else:
        families = parser.text_string_to_metric_families(text)
    return {one.name: one for one in families}


def samples(registry: Registry, name: str) -> dict[tuple[str, ...], float]:
    """Label values (a suffix first) to value, the same in both formats."""
    told = []
    for text_format in TextFormat:
        family = parsed(registry, text_format)[name]
        told.append(
            {
                (one.name.removeprefix(name), *one.labels.values()): one.value
                for one in family.samples
            }
        )
    assert told[0] == told[1]
    return told[0]


# -- counters --------------------------------------------------------------------------------------


def test_every_api_counts_for_itself() -> None:
    apis = ApiCounters()
    apis.observe(0, 50, 100, 20, 0)
    apis.observe(0, 51, 1, 2, 3)
    apis.observe(1, 6_000_000, 7, 8, 1)
    assert (apis.requests[0], apis.bytes_in[0], apis.bytes_out[0], apis.errors[0]) == (
        2,
        101,
        22,
        3,
    )
    assert list(apis.latency_counts[:BUCKETS]) == [1, 1] + [0] * (BUCKETS - 2)
    assert apis.latency_counts[2 * BUCKETS - 1] == 1
    assert (apis.latency_sum_us[0], apis.latency_sum_us[1]) == (101, 6_000_000)
    assert sum(apis.requests) == 3


@pytest.mark.parametrize("api_key", [-1, -128, OTHER_API, API_SLOTS, 32767, 2**40])
def test_a_key_that_has_no_slot_is_counted_as_other(api_key: int) -> None:
    """A client can send any key; none may raise or land in another API's counters."""
    apis = ApiCounters()
    apis.observe(api_key, 1, 1, 1, 1)
    assert apis.requests[OTHER_API] == apis.errors[OTHER_API] == 1
    assert sum(apis.requests) == sum(apis.latency_counts) == 1


@given(st.lists(st.integers(0, 10_000_000)))
def test_a_bucket_holds_what_is_at_most_its_bound(latencies_us: list[int]) -> None:
    apis = ApiCounters()
    for latency_us in latencies_us:
        apis.observe(3, latency_us, 0, 0, 0)
    cumulated = [
        sum(apis.latency_counts[3 * BUCKETS : 3 * BUCKETS + n + 1]) for n in range(BUCKETS)
    ]
    expected = [sum(one <= bound for one in latencies_us) for bound in BUCKET_BOUNDS_US]
    assert cumulated == [*expected, len(latencies_us)]


def test_arrays_take_writes_through_a_buffer() -> None:
    """Compiled code holds the buffers; the arrays behind them never move."""
    apis = ApiCounters()
    view = memoryview(apis.requests)
    view[5] += 7
    apis.observe(5, 1, 0, 0, 0)
    assert apis.requests[5] == view[5] == 8
    assert view.format == "q"
    assert len(memoryview(apis.latency_counts)) == API_SLOTS * BUCKETS
    with pytest.raises(BufferError):
        apis.requests.append(1)


# -- formats ---------------------------------------------------------------------------------------


def test_requests_are_told_by_api_with_latency_in_seconds() -> None:
    metrics = BrokerMetrics()
    metrics.apis.observe(0, 150, 10, 20, 0)
    metrics.apis.observe(2, 2_000_000, 1, 2, 2)
    assert samples(metrics, "millstream_requests") == {
        ("_total", "Produce"): 1,
        ("_total", "ListOffsets"): 1,
    }
    assert samples(metrics, "millstream_request_errors")[("_total", "ListOffsets")] == 2
    assert samples(metrics, "millstream_request_bytes")[("_total", "Produce")] == 10
    assert samples(metrics, "millstream_response_bytes")[("_total", "Produce")] == 20
    latency = samples(metrics, "millstream_request_latency_seconds")
    assert latency[("_sum", "ListOffsets")] == 2.0
    assert latency[("_count", "Produce")] == 1
    buckets = {
        float(labels[2]): count
        for labels, count in latency.items()
        if labels[:2] == ("_bucket", "Produce")
    }
    assert len(buckets) == BUCKETS
    assert all(count == (bound >= 150e-6) for bound, count in buckets.items())


def test_an_api_without_a_name_is_told_as_unknown() -> None:
    metrics = BrokerMetrics()
    metrics.apis.observe(1234, 1, 1, 1, 1)
    assert samples(metrics, "millstream_requests") == {("_total", "Unknown"): 1}


@BOTH
def test_labels_of_any_text_come_back(text_format: TextFormat) -> None:
    odd = 'a"b\\c\nd,}{=\u00e9\U0001f600'
    registry = Registry()
    registry.register_labelled(
        "odd", 'help with \\ and\na "newline"', lambda: [((odd, ""), 1.5)], label_names=["x", "y"]
    )
    family = parsed(registry, text_format)["millstream_odd"]
    assert family.samples[0].labels == {"x": odd, "y": ""}
    assert family.samples[0].value == 1.5
    assert "newline" in family.documentation


@BOTH
@pytest.mark.parametrize("value", [0, -1, 2**62, 1e-7, float("inf"), float("-inf"), True], ids=repr)
def test_numbers_come_back(text_format: TextFormat, value: float) -> None:
    registry = Registry()
    registry.register_gauge("value", "A value", lambda: value)
    assert parsed(registry, text_format)["millstream_value"].samples[0].value == value


def test_not_a_number_is_written_as_prometheus_does() -> None:
    registry = Registry()
    registry.register_gauge("value", "A value", lambda: float("nan"))
    assert "millstream_value NaN\n" in text_of(registry, TextFormat.PROMETHEUS)


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=8),
    st.floats(0, 1e9),
)
def test_histograms_come_back(counts: list[int], total: float) -> None:
    registry = Registry()
    bounds = [10.0**n for n in range(len(counts) - 1)]
    registry.register_labelled(
        "some_seconds",
        "Something",
        lambda: [((), Distribution(bounds, counts, total))],
        kind=Kind.HISTOGRAM,
        label_names=[],
    )
    told = samples(registry, "millstream_some_seconds")
    assert told[("_count",)] == told[("_bucket", "+Inf")] == sum(counts)
    assert told[("_sum",)] == total
    for n, bound in enumerate(bounds):
        assert told[("_bucket", repr(bound))] == sum(counts[: n + 1])


def test_openmetrics_ends_with_its_mark_and_the_other_does_not() -> None:
    registry = Registry()
    assert text_of(registry, TextFormat.OPENMETRICS).endswith("\n# EOF\n")
    assert "EOF" not in text_of(registry, TextFormat.PROMETHEUS)


def test_many_values_are_rendered_in_short_pieces() -> None:
    registry = Registry()
    rows = [((str(number),), number) for number in range(10_000)]
    registry.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])
    pieces = list(render(registry, TextFormat.OPENMETRICS))
    assert max(piece.count(b"\n") for piece in pieces) < 600
    assert len(parsed(registry, TextFormat.OPENMETRICS)["millstream_rows"].samples) == 10_000


def test_what_changes_between_two_pieces_does_not_break_a_scrape() -> None:
    registry = Registry()
    live = {str(number): number for number in range(5000)}
    registry.register_labelled(
        "live", "Live", lambda: (((name,), n) for name, n in live.items()), label_names=["n"]
    )
    pieces = render(registry, TextFormat.PROMETHEUS)
    first = next(pieces)
    live.clear()
    live["new"] = 1
    text = (first + b"".join(pieces)).decode()
    (family,) = (
        one for one in parser.text_string_to_metric_families(text) if one.name == "millstream_live"
    )
    assert len(family.samples) == 5000


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TextFormat.PROMETHEUS),
        ("*/*", TextFormat.PROMETHEUS),
        ("text/html", TextFormat.PROMETHEUS),
        ("application/openmetrics-text", TextFormat.OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0, text/plain;q=0.5", TextFormat.OPENMETRICS),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;version=2.0.0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=rubbish", TextFormat.PROMETHEUS),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,"
            "*/*;q=0.1",
            TextFormat.OPENMETRICS,
        ),
        (";;;=,,;q==", TextFormat.PROMETHEUS),
    ],
)
def test_format_follows_the_accept_header(accept: str, expected: TextFormat) -> None:
    assert choose_format(accept) is expected


@given(st.text(max_size=60))
def test_any_accept_header_gives_a_format(accept: str) -> None:
    assert choose_format(accept) in TextFormat


def test_content_types_are_those_of_prometheus_client() -> None:
    assert openmetrics.exposition.CONTENT_TYPE_LATEST == TextFormat.OPENMETRICS


# -- registry --------------------------------------------------------------------------------------


def test_a_callback_that_fails_costs_its_own_family_only() -> None:
    registry = Registry()
    registry.register_gauge("broken", "Broken", lambda: 1 // 0)
    registry.register_gauge("whole", "Whole", lambda: 7)
    for text_format in TextFormat:
        told = parsed(registry, text_format)
        assert told["millstream_whole"].samples[0].value == 7
        assert "millstream_broken" not in told
    assert parsed(registry, TextFormat.PROMETHEUS)["millstream_scrape_failures"].samples[0].value


@pytest.mark.parametrize("name", ["Upper", "with space", "", "x-y", "x\n", "counts_total"])
def test_a_bad_gauge_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="millstream_"):
        Registry().register_gauge(name, "Help", lambda: 1)


def test_counters_end_with_total_and_names_are_registered_once() -> None:
    registry = Registry()
    with pytest.raises(ValueError, match="_total"):
        registry.register_counter("things", "Help", lambda: 1)
    registry.register_counter("things_total", "Help", lambda: 1)
    with pytest.raises(ValueError, match="twice"):
        registry.register_counter("millstream_things_total", "Help", lambda: 1)


def test_topics_are_read_once_per_scrape_for_all_their_families() -> None:
    metrics = BrokerMetrics()
    reads = []

    def read() -> list[TopicTotals]:
        reads.append(1)
        return [
            TopicTotals("a", 3, 10, 1000, 2000, 5000),
            TopicTotals("b", 1, 0, 0, 0, 0),
        ]

    metrics.register_topics(read)
    told = parsed(metrics, TextFormat.OPENMETRICS)
    assert len(reads) == 1
    values = {
        name: {one.labels["topic"]: one.value for one in family.samples}
        for name, family in told.items()
        if name.startswith("millstream_topic")
    }
    assert values == {
        "millstream_topic_partitions": {"a": 3, "b": 1},
        "millstream_topic_messages_in": {"a": 10, "b": 0},
        "millstream_topic_bytes_in": {"a": 1000, "b": 0},
        "millstream_topic_bytes_out": {"a": 2000, "b": 0},
        "millstream_topic_log_bytes": {"a": 5000, "b": 0},
    }


# -- connections, lag, process ---------------------------------------------------------------------


def test_connections_are_counted_from_open_to_close() -> None:
    metrics = BrokerMetrics()
    connections = metrics.connections
    for _ in range(3):
        connections.opened()
    connections.closed("idle")
    connections.refused("limit")
    assert samples(metrics, "millstream_connections") == {("",): 2}
    assert samples(metrics, "millstream_connections_accepted") == {("_total",): 3}
    assert samples(metrics, "millstream_connections_closed") == {("_total", "idle"): 1}
    assert samples(metrics, "millstream_connections_refused") == {("_total", "limit"): 1}


def test_reasons_that_vary_cannot_fill_the_memory() -> None:
    connections = BrokerMetrics().connections
    for number in range(1000):
        connections.closed(f"frame of {number} bytes")
    assert len(connections.closed_by_reason) <= REASONS_MAX + 1
    assert sum(connections.closed_by_reason.values()) == 1000


def test_lag_maximum_lasts_at_least_a_minute_and_at_most_two() -> None:
    lag = LoopLag()
    lag.observe(5000, now_s=0.0)
    for now_s in range(1, 60):
        lag.observe(10, now_s=float(now_s))
    assert lag.max_s() == 0.005
    lag.observe(20, now_s=61.0)
    assert lag.max_s() == 0.005
    lag.observe(30, now_s=122.0)
    assert lag.max_s() == 0.00003
    lag.observe(40, now_s=1000.0)
    assert lag.max_s() == 0.00004
    assert sum(lag.distribution().counts) == 63


def test_sampler_sees_a_loop_that_was_held_up() -> None:
    """On a real loop, as virtual time never stands still."""
    sampled = asyncio.Event()

    class Telling(LoopLag):
        def observe(self, lag_us: int, *, now_s: float) -> None:
            super().observe(lag_us, now_s=now_s)
            sampled.set()

    lag = Telling()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sampler = LoopLagSampler(loop, lag)
        sampler.start()
        held_until = loop.time() + 0.4
        while loop.time() < held_until:
            pass
        async with asyncio.timeout(20):
            await sampled.wait()
        sampler.stop()

    asyncio.run(main())
    assert lag.max_s() >= 0.1


def test_sampler_samples_in_virtual_time_until_it_is_stopped() -> None:
    lag = LoopLag()

    async def main() -> None:
        sampler = LoopLagSampler(asyncio.get_running_loop(), lag)
        sampler.start()
        await asyncio.sleep(10.1)
        sampler.stop()
        await asyncio.sleep(10)

    run(main)
    assert sum(lag.distribution().counts) == 40
    assert lag.max_s() < 0.001


def test_process_facts_are_those_of_the_process() -> None:
    process = LinuxProcess()
    before = process.open_descriptors()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    assert process.open_descriptors() == before + 5
    for descriptor in opened:
        os.close(descriptor)
    resident = process.resident_bytes()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert process.resident_bytes() - resident > 50 << 20
    del block
    assert process.virtual_bytes() > process.resident_bytes()
    assert process.descriptors_max() >= 20
    assert process.cpu_s() > 0


def test_every_metric_is_in_the_documentation() -> None:
    metrics = BrokerMetrics(LinuxProcess())
    metrics.register_topics(list)
    text = DOCUMENTATION.read_text()
    assert [name for name in metrics.names() if f"`{name}`" not in text] == []


def test_bounds_are_sorted() -> None:
    assert list(BUCKET_BOUNDS_US) == sorted(set(BUCKET_BOUNDS_US))
    assert bisect_left(BUCKET_BOUNDS_US, 10**12) == BUCKETS - 1
