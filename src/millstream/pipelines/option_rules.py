"""The rules of single options: valid values and defaults.

`options.py` combines them for the three kinds of use.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from millstream.model.ids import TimestampMs
from millstream.pipelines.admission import MAX_TRIGGER_DELAY_MS_DEFAULT, AdmissionLimits
from millstream.pipelines.bounds import AtOffsets, AtTimestamp, AtTimestamps, Bound, Edge, NoMatch
from millstream.pipelines.errors import OffsetsInvalid, OptionsInvalid
from millstream.pipelines.java_regex import PatternUnsupported, compile_java_pattern
from millstream.pipelines.offsets_json import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    offsets_from_text,
    partitions_from_text,
    timestamps_from_text,
)
from millstream.pipelines.option_values import INT_MAX, OptionTexts
from millstream.pipelines.subscription import (
    Assign,
    Subscribe,
    SubscribePattern,
    Subscription,
    is_topic_name,
)

CLIENT_PREFIX: Final = "kafka."
POLL_TIMEOUT_MS_DEFAULT: Final = 120_000
"""The connector's: `spark.network.timeout`."""
OFFSET_FETCH_ATTEMPTS_DEFAULT: Final = 3
OFFSET_FETCH_INTERVAL_MS_DEFAULT: Final = 1000
"""In the connector's code; its documentation says 10."""

_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
START_OPTIONS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
END_OPTIONS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
PACE_OPTIONS: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
GROUP_OPTION: Final = "group.id"
"""The group that a streaming query commits its progress to."""
READ_OPTIONS: Final = (
    *_STRATEGIES,
    *START_OPTIONS,
    *END_OPTIONS,
    *PACE_OPTIONS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    GROUP_OPTION,
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
)
WRITE_OPTIONS: Final = ("topic", "includeHeaders", "deliveryGuarantee")

_SPARKS_OWN: Final = ("path", "paths", "checkpointlocation", "queryname", "outputmode")
"""Spark passes them to every source and sink."""

REFUSED_FOR_READING: Final = {
    "auto.offset.reset": "cannot be used: startingOffsets decides, and later the checkpoint",
    "enable.auto.commit": "cannot be used: the checkpoint records what was read",
    "interceptor.classes": "cannot be used: records are read unchanged",
    "key.deserializer": "cannot be used: keys are binary; convert them in the DataFrame",
    "value.deserializer": "cannot be used: values are binary; convert them in the DataFrame",
}
REFUSED_FOR_WRITING: Final = {
    "key.serializer": "cannot be used: keys are bytes, or strings in UTF-8",
    "value.serializer": "cannot be used: values are bytes, or strings in UTF-8",
}

_Value = TypeVar("_Value")


class IsolationLevel(Enum):
    """Which records of transactions are read, and whether `latest` is the last stable offset."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class DeliveryGuarantee(Enum):
    """What a sink promises."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetch:
    """How often the driver retries to look up offsets."""

    attempts: int = OFFSET_FETCH_ATTEMPTS_DEFAULT
    interval_ms: int = OFFSET_FETCH_INTERVAL_MS_DEFAULT


# -- where a query starts and ends -------------------------------------------------------------


def bound_of(texts: OptionTexts, names: tuple[str, ...], *, default: Edge) -> tuple[Bound, str]:
    """The bound, and the option that it came from: the first of `names` that is set."""
    by_time, by_times, by_offsets = names
    if (text := texts.text(by_time)) is not None:
        # The connector trims this one.
        stamp = OptionTexts({by_time: text.strip()}).whole(by_time, lowest=0)
        return AtTimestamp(TimestampMs(value_or(stamp, 0))), by_time
    if (text := texts.text(by_times)) is not None:
        return AtTimestamps(_parsed(by_times, text, timestamps_from_text)), by_times
    if (text := texts.text(by_offsets)) is None:
        return default, by_offsets
    if text.strip().lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(text.strip().lower()), by_offsets
    if not text.strip().startswith("{"):
        reason = "must be earliest, latest, or JSON with an offset for every partition"
        raise OptionsInvalid(by_offsets, text, reason)
    return AtOffsets(_parsed(by_offsets, text, offsets_from_text)), by_offsets


def refuse_edge(bound: Bound, edge: Edge, texts: OptionTexts, name: str) -> None:
    """A batch that starts at the latest or ends at the earliest offset would always be empty."""
    code = LATEST_OFFSET if edge is Edge.LATEST else EARLIEST_OFFSET
    if bound is edge:
        raise OptionsInvalid(name, texts.text(name), f"a batch query cannot use {edge.value} here")
    if isinstance(bound, AtOffsets):
        found = sorted(str(one) for one, offset in bound.offsets.items() if offset == code)
        if found:
            reason = f"a batch query cannot use {edge.value} ({code}) here, as {found[0]} does"
            raise OptionsInvalid(name, texts.text(name), reason)


def overridden_options(texts: OptionTexts, names: tuple[str, ...]) -> list[str]:
    given = [name for name in names if name in texts]
    return [f"option '{name}' is ignored, because {given[0]} is set" for name in given[1:]]


def no_match_of(texts: OptionTexts) -> NoMatch:
    name = "startingOffsetsByTimestampStrategy"
    text = texts.text(name)
    if text is None:
        return NoMatch.ERROR
    try:
        return NoMatch(text.lower())
    except ValueError:
        raise OptionsInvalid(name, text, "must be error or latest") from None


# -- what is read ------------------------------------------------------------------------------


def subscription_of(texts: OptionTexts) -> Subscription:
    given = [name for name in _STRATEGIES if name in texts]
    choice = ", ".join(_STRATEGIES)
    if not given:
        hint = "; topic is for writing" if "topic" in texts else ""
        raise OptionsInvalid("subscribe", None, f"one of {choice} must be set{hint}")
    if len(given) > 1:
        reason = f"only one of {choice} can be set, and {given[1]} is set too"
        raise OptionsInvalid(given[0], texts.text(given[0]), reason)
    text = texts.text(given[0]) or ""
    match given[0]:
        case "subscribe":
            return _subscribe(text)
        case "subscribePattern":
            return _subscribe_pattern(text)
        case _:
            return _assign(text)


def _subscribe(text: str) -> Subscribe:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionsInvalid("subscribe", text, "no topics to subscribe to")
    for name in names:
        if not is_topic_name(name):
            raise OptionsInvalid("subscribe", text, f"'{name}' cannot be the name of a topic")
    return Subscribe(tuple(dict.fromkeys(names)))


def _subscribe_pattern(text: str) -> SubscribePattern:
    pattern = text.strip()
    if not pattern:
        raise OptionsInvalid("subscribePattern", text, "the pattern is empty")
    try:
        compile_java_pattern(pattern)
    except PatternUnsupported as error:
        raise OptionsInvalid("subscribePattern", text, str(error)) from None
    return SubscribePattern(pattern)


def _assign(text: str) -> Assign:
    partitions = _parsed("assign", text, partitions_from_text)
    if not partitions:
        raise OptionsInvalid("assign", text, "no partitions to read")
    for topic in {one.topic for one in partitions}:
        if not is_topic_name(topic):
            raise OptionsInvalid("assign", text, f"'{topic}' cannot be the name of a topic")
    return Assign(partitions)


# -- limits and retries ------------------------------------------------------------------------


def limits_of(texts: OptionTexts) -> AdmissionLimits:
    # Zero would be a query that runs and never reads.
    max_offsets = texts.whole("maxOffsetsPerTrigger", lowest=1)
    min_offsets = texts.whole("minOffsetsPerTrigger", lowest=0)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        reason = f"is higher than maxOffsetsPerTrigger, which is {max_offsets}"
        raise OptionsInvalid("minOffsetsPerTrigger", str(min_offsets), reason)
    max_bytes = texts.size_bytes("maxBytesPerTrigger")
    if max_bytes == 0:
        raise OptionsInvalid("maxBytesPerTrigger", "0", "must be at least one byte")
    return AdmissionLimits(
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay_ms=value_or(texts.duration_ms("maxTriggerDelay"), MAX_TRIGGER_DELAY_MS_DEFAULT),
        max_bytes=max_bytes,
    )


def offset_fetch_of(texts: OptionTexts) -> OffsetFetch:
    attempts = texts.whole("fetchOffset.numRetries", lowest=1, highest=INT_MAX)
    interval_ms = texts.whole("fetchOffset.retryIntervalMs", lowest=0)
    return OffsetFetch(
        attempts=value_or(attempts, OFFSET_FETCH_ATTEMPTS_DEFAULT),
        interval_ms=value_or(interval_ms, OFFSET_FETCH_INTERVAL_MS_DEFAULT),
    )


def cache_ttl_ms_of(texts: OptionTexts) -> int | None:
    name = "partition.metadata.cache.ttl.ms"
    found = texts.whole(name, lowest=-1)
    if found == 0:
        raise OptionsInvalid(name, "0", "must be a number of milliseconds, or -1 for no cache")
    return None if found == -1 else found


# -- the client's settings ---------------------------------------------------------------------


def client_settings_of(texts: OptionTexts, refused: Mapping[str, str]) -> dict[str, str]:
    for name, reason in refused.items():
        if CLIENT_PREFIX + name in texts:
            raise OptionsInvalid(CLIENT_PREFIX + name, texts.text(CLIENT_PREFIX + name), reason)
    reason = "set it to the addresses of brokers, comma-separated host:port"
    if "bootstrap.servers" in texts:
        reason += "; write kafka.bootstrap.servers: all client settings have the prefix kafka."
    texts.required("kafka.bootstrap.servers", reason)
    return texts.group(CLIENT_PREFIX)


def isolation_of(texts: OptionTexts) -> IsolationLevel:
    name = "kafka.isolation.level"
    text = texts.text(name)
    if text is None:
        return IsolationLevel.READ_UNCOMMITTED
    try:
        return IsolationLevel(text.strip().lower())
    except ValueError:
        raise OptionsInvalid(name, text, "must be read_uncommitted or read_committed") from None


def group_id_of(texts: OptionTexts) -> str | None:
    text = texts.text(GROUP_OPTION)
    if text is not None and not text.strip():
        raise OptionsInvalid(GROUP_OPTION, text, "must be the name of a consumer group")
    return text


def topic_of(texts: OptionTexts) -> str | None:
    text = texts.text("topic")
    if text is None:
        return None
    if not is_topic_name(text.strip()):
        raise OptionsInvalid("topic", text, "cannot be the name of a topic")
    return text.strip()


def guarantee_of(texts: OptionTexts) -> DeliveryGuarantee:
    name = "deliveryGuarantee"
    text = texts.text(name) or DeliveryGuarantee.AT_LEAST_ONCE.value
    if text.strip().lower() == DeliveryGuarantee.EXACTLY_ONCE.value:
        raise OptionsInvalid(
            name, text, "is not supported yet, as it needs transactions; use at_least_once"
        )
    if text.strip().lower() != DeliveryGuarantee.AT_LEAST_ONCE.value:
        raise OptionsInvalid(name, text, "must be at_least_once")
    return DeliveryGuarantee.AT_LEAST_ONCE


# -- names -------------------------------------------------------------------------------------


def unknown_options(
    texts: OptionTexts, known: tuple[str, ...], also_known: Collection[str]
) -> list[str]:
    """A warning for each name that is not read, with the one that was probably meant."""
    applicable = {name.lower(): name for name in (*known, *also_known)}
    other_side = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    found = []
    for name in texts.names:
        if name in applicable or name in _SPARKS_OWN or name.startswith((CLIENT_PREFIX, "spark.")):
            continue
        if name in other_side:
            side = "reading" if name in {one.lower() for one in READ_OPTIONS} else "writing"
            found.append(f"option '{other_side[name]}' is ignored: it is for {side}")
            continue
        close = difflib.get_close_matches(name, applicable, n=1, cutoff=0.75)
        hint = f"; did you mean {applicable[close[0]]}?" if close else ""
        found.append(f"option '{name}' is unknown and ignored{hint}")
    return found


def value_or(value: int | None, default: int) -> int:
    return default if value is None else value


def _parsed(name: str, text: str, parse: Callable[[str], _Value]) -> _Value:
    try:
        return parse(text)
    except OffsetsInvalid as error:
        raise OptionsInvalid(name, text, f"{error.reason}; expected e.g. {error.example}") from None
