"""Options of the source and the sink: names, defaults and rules of Spark's Kafka connector.

Every option is parsed once, here, on the driver, before any request to a broker; the rest of the
code sees typed values. A wrong value raises `OptionsInvalid`. A legal but probably unintended one
(an unknown name, an option that another one overrides or that this kind of query ignores) is a
warning: the connector is silent there, and a query moved from it must still start.
docs/spark-options.md has the table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.pipelines.admission import AdmissionLimits
from millstream.pipelines.bounds import Bound, Edge, NoMatch
from millstream.pipelines.errors import OptionsInvalid
from millstream.pipelines.option_rules import (
    END_OPTIONS,
    GROUP_OPTION,
    PACE_OPTIONS,
    POLL_TIMEOUT_MS_DEFAULT,
    READ_OPTIONS,
    REFUSED_FOR_READING,
    REFUSED_FOR_WRITING,
    START_OPTIONS,
    WRITE_OPTIONS,
    DeliveryGuarantee,
    IsolationLevel,
    OffsetFetch,
    bound_of,
    cache_ttl_ms_of,
    client_settings_of,
    group_id_of,
    guarantee_of,
    isolation_of,
    limits_of,
    no_match_of,
    offset_fetch_of,
    overridden_options,
    refuse_edge,
    subscription_of,
    topic_of,
    unknown_options,
    value_or,
)
from millstream.pipelines.option_values import INT_MAX, OptionTexts
from millstream.pipelines.resolution import check_bounds_fit
from millstream.pipelines.subscription import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What batch and streaming have in common."""

    subscription: Subscription
    start: Bound
    no_match: NoMatch
    """When `start` is a time that no record reaches."""
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    poll_timeout_ms: int
    offset_fetch: OffsetFetch
    partition_cache_ttl_ms: int | None
    """How long the driver may cache the set of partitions; None: look it up every time."""
    group_id_prefix: str | None
    group_id: str | None
    isolation: IsolationLevel
    client_settings: Mapping[str, str]
    """`kafka.*` without the prefix, for the client; it warns of unknown names."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReadOptions:
    """`spark.read`."""

    read: ReadOptions
    end: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadOptions:
    """`spark.readStream`."""

    read: ReadOptions
    limits: AdmissionLimits
    progress_group_id: str | None
    """The consumer group that the query commits its progress to; None: no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """`df.write` and `df.writeStream`."""

    topic: str | None
    """For all rows, overriding their column `topic`; None: the column decides."""
    guarantee: DeliveryGuarantee
    client_settings: Mapping[str, str]
    warnings: tuple[str, ...]


def batch_read_options(
    options: Mapping[str, str], *, also_known: Collection[str] = ()
) -> BatchReadOptions:
    """Options of a batch query. `also_known`: names that the shell reads itself."""
    texts = OptionTexts(options)
    start, start_name = bound_of(texts, START_OPTIONS, default=Edge.EARLIEST)
    end, end_name = bound_of(texts, END_OPTIONS, default=Edge.LATEST)
    refuse_edge(start, Edge.LATEST, texts, start_name)
    refuse_edge(end, Edge.EARLIEST, texts, end_name)
    check_bounds_fit(start, end)
    ignored = [
        f"option '{name}' is ignored: it is for streaming queries"
        for name in (*PACE_OPTIONS, GROUP_OPTION)
        if name in texts
    ]
    warnings = (
        *overridden_options(texts, END_OPTIONS),
        *ignored,
        *unknown_options(texts, READ_OPTIONS, also_known),
    )
    return BatchReadOptions(read=_read_options(texts, start, warnings), end=end)


def stream_read_options(
    options: Mapping[str, str], *, also_known: Collection[str] = ()
) -> StreamReadOptions:
    """Options of a streaming query."""
    texts = OptionTexts(options)
    for name in END_OPTIONS:
        if name in texts:
            raise OptionsInvalid(name, texts.text(name), "a streaming query has no end")
    start, _ = bound_of(texts, START_OPTIONS, default=Edge.LATEST)
    warnings = list(unknown_options(texts, READ_OPTIONS, also_known))
    if "maxTriggerDelay" in texts and "minOffsetsPerTrigger" not in texts:
        warnings.append("option 'maxTriggerDelay' has no effect without minOffsetsPerTrigger")
    return StreamReadOptions(
        read=_read_options(texts, start, tuple(warnings)),
        limits=limits_of(texts),
        progress_group_id=group_id_of(texts),
    )


def write_options(options: Mapping[str, str], *, also_known: Collection[str] = ()) -> WriteOptions:
    """Options of a sink."""
    texts = OptionTexts(options)
    settings = client_settings_of(texts, REFUSED_FOR_WRITING)
    texts.truth("includeHeaders", default=False)
    return WriteOptions(
        topic=topic_of(texts),
        guarantee=guarantee_of(texts),
        client_settings=settings,
        warnings=tuple(unknown_options(texts, WRITE_OPTIONS, also_known)),
    )


def _read_options(texts: OptionTexts, start: Bound, warnings: tuple[str, ...]) -> ReadOptions:
    subscription = subscription_of(texts)
    limits_of(texts)
    settings = client_settings_of(texts, REFUSED_FOR_READING)
    own = overridden_options(texts, START_OPTIONS)
    if "kafka.group.id" in texts and "groupIdPrefix" in texts:
        own.append("option 'groupIdPrefix' is ignored, because kafka.group.id is set")
    return ReadOptions(
        subscription=subscription,
        start=start,
        no_match=no_match_of(texts),
        fail_on_data_loss=texts.truth("failOnDataLoss", default=True),
        include_headers=texts.truth("includeHeaders", default=False),
        min_partitions=texts.whole("minPartitions", lowest=1, highest=INT_MAX),
        max_records_per_partition=texts.whole("maxRecordsPerPartition", lowest=1),
        poll_timeout_ms=value_or(
            texts.whole("kafkaConsumer.pollTimeoutMs", lowest=1), POLL_TIMEOUT_MS_DEFAULT
        ),
        offset_fetch=offset_fetch_of(texts),
        partition_cache_ttl_ms=cache_ttl_ms_of(texts),
        group_id_prefix=texts.text("groupIdPrefix"),
        group_id=texts.text("kafka.group.id"),
        isolation=isolation_of(texts),
        client_settings=settings,
        warnings=(*own, *warnings),
    )
