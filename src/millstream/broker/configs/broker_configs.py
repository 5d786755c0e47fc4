"""The settings in force of a broker and of topics and groups, by their sources.

A broker's value comes from, in order of precedence: its own dynamic settings, the dynamic defaults
of all brokers, the file it was started with, the key's default. A topic's comes from the topic,
else from the broker. All values are computed when a setting changes, so that reading is one lookup.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from millstream.broker.configs.entries import (
    ConfigEntry,
    Sources,
    broker_entry,
    group_entry,
    named,
    shown_broker_keys,
    shown_topic_keys,
    topic_entry,
)
from millstream.controller.topics import TopicDefaults
from millstream.kernels.compression import Codec
from millstream.model.config.broker_keys import (
    BROKER_ID,
    BROKER_KEYS,
    FALLBACKS,
    NODE_ID,
    broker_key,
    has_room_in,
)
from millstream.model.config.definition import ConfigKey, Mode, Value, split_list, text_of
from millstream.model.config.errors import InvalidConfig, InvalidConfigRequest, InvalidValue
from millstream.model.config.group_keys import (
    GROUP_KEYS,
    check_coordinator_values,
    check_group_values,
    group_key,
)
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.topic_keys import (
    GZIP_DEFAULT_LEVEL,
    LONG_MAX,
    TOPIC_KEYS,
    check_together,
    topic_key,
    validate_topic_configs,
)
from millstream.model.ids import BrokerId
from millstream.model.limits import CONFIG_KEYS_PER_RESOURCE_MAX
from millstream.observe.logs import get_logger
from millstream.storage.compaction.cleaner import CleanerLimits
from millstream.storage.config import LogConfig, TimestampType

log = get_logger("millstream.broker.configs")

DOUBLE_MAX: Final = 1.7976931348623157e308
"""Kafka's value for a rate without a limit."""

REPORTED_MAX: Final = 100
"""Ignored or inert settings that a process logs: clients choose the names, so it needs a limit."""

_INDEX_ENTRY_BYTES: Final = 8

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_LEVEL_KEYS: Final = {
    Codec.GZIP: "compression.gzip.level",
    Codec.LZ4: "compression.lz4.level",
    Codec.ZSTD: "compression.zstd.level",
}

_GROUP_VALUES: Final = {
    "consumer.assignment.interval.ms": (
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": (
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": (
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
}
"""For each key of a group: the broker's key, and those of its minimum and maximum."""

Values = dict[str, Value | None]


class BrokerConfigs:
    """Used on the loop's thread only."""

    def __init__(
        self,
        static: Mapping[str, str],
        *,
        broker_id: BrokerId | None = None,
        reported: set[tuple[str, str]] | None = None,
    ) -> None:
        """`static` is what the broker was started with; unknown keys are only described.

        Raises InvalidConfig for an invalid value or combination of values.
        """
        kept = {name: text for name, text in static.items() if _is_kept(name, text)}
        self._sources = Sources(static=_with_ids(kept, broker_id))
        self._subscribers: list[Callable[[], None]] = []
        self._values: Values = {}
        self._topic_defaults: Values = {}
        self._reported = set() if reported is None else reported
        """Settings, with their values, that were logged."""
        self.altering = asyncio.Lock()
        """Held from reading settings to having changed them: of two changes none may be lost."""
        self._use(self._sources)

    # -- a broker's values -----------------------------------------------------------------

    @property
    def broker_id(self) -> BrokerId:
        return BrokerId(self.get_int(NODE_ID))

    def get_int(self, name: str) -> int:
        """An integer; KeyError for a key of another type."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise KeyError(f"{name} is not an integer: {value!r}")
        return value

    def get_bool(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            raise KeyError(f"{name} is not a boolean: {value!r}")
        return value

    def get_float(self, name: str) -> float:
        value = self._values[name]
        if not isinstance(value, float):
            raise KeyError(f"{name} is not a number: {value!r}")
        return value

    def get_text(self, name: str) -> str:
        """The value as text; empty if it is not set."""
        value = self._values[name]
        return "" if value is None else text_of(value)

    def get_list(self, name: str) -> list[str]:
        """The members of a list, also of a string with commas."""
        value = self._values[name]
        if isinstance(value, list):
            return list(value)
        return split_list(value) if isinstance(value, str) else []

    def get_written(self, name: str) -> list[str]:
        """The members as they were written, duplicates included."""
        text = self._sources.text(broker_key(name)) or ""
        return [member.strip() for member in text.split(",")] if text.strip() else []

    def is_set(self, name: str) -> bool:
        """Whether it was set anywhere; otherwise its value is the default."""
        return any(name in one for one in self._sources)

    def topic_defaults(self) -> TopicDefaults:
        """For topics that are created without a partition count or replication factor."""
        return TopicDefaults(
            self.get_int("num.partitions"), self.get_int("default.replication.factor")
        )

    def cleaner_limits(self) -> CleanerLimits:
        """For the log cleaner; the rate can change while the broker runs."""
        rate = self.get_float("log.cleaner.io.max.bytes.per.second")
        return CleanerLimits(
            key_map_bytes=self.get_int("log.cleaner.dedupe.buffer.size"),
            bytes_per_s=math.inf if rate >= DOUBLE_MAX else rate,
        )

    def move_bytes_per_s(self) -> float:
        """For moves between log directories; it can change while the broker runs."""
        rate = self.get_int("replica.alter.log.dirs.io.max.bytes.per.second")
        return math.inf if rate >= int(LONG_MAX) else rate

    def throttle_bytes_per_s(self, name: str) -> float:
        """For copies to replicas that catch up; it can change while the broker runs."""
        rate = self.get_int(name)
        return math.inf if rate >= int(LONG_MAX) else rate

    # -- a topic's values ------------------------------------------------------------------

    def topic_text(self, topic_configs: Mapping[str, str], name: str) -> str:
        """A topic's setting as text; empty if it is not set anywhere."""
        value = self._topic_values(topic_configs)[name]
        return "" if value is None else text_of(value)

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """The settings that the topic's logs need."""
        return _log_config(
            self._topic_values(topic_configs), self.get_int("producer.id.expiration.ms")
        )

    def check_topic_configs(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfig unless a topic may have these settings on this broker."""
        validate_topic_configs(configs, self._topic_defaults)

    def _topic_values(self, topic_configs: Mapping[str, str]) -> Values:
        if not topic_configs:
            return self._topic_defaults
        values = dict(self._topic_defaults)
        for name, text in topic_configs.items():
            # Another version of this program may have stored a value that this one rejects. The
            # topic is served with the default then; not opening its logs would be worse.
            try:
                values[name] = topic_key(name).parse(text)
            except InvalidConfig as error:
                self._report_ignored(name, text, error)
            else:
                if name not in TOPIC_KEYS:
                    self._report_inert(name, INERT_TOPIC_REASONS[name])
        return values

    # -- a group's values ------------------------------------------------------------------

    def check_group_configs(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfig unless a group may have these settings on this broker."""
        values = {name: group_key(name).parse(text) for name, text in configs.items()}
        check_group_values(values, self._values)

    def group_int(self, group_configs: Mapping[str, str], name: str) -> int:
        """A group's setting within the broker's limits, which may have changed since it was set."""
        broker_name, lowest, highest = _GROUP_VALUES[name]
        value = self.get_int(broker_name)
        text = group_configs.get(name)
        if text is not None:
            try:
                value = int(str(group_key(name).parse(text)))
            except InvalidConfig as error:
                self._report_ignored(name, text, error)
        return max(self.get_int(lowest), min(value, self.get_int(highest)))

    # -- changes ---------------------------------------------------------------------------

    def set_dynamic(self, *, broker: Mapping[str, str], default: Mapping[str, str]) -> None:
        """Apply the stored settings of this broker and of all, and notify the subscribers."""
        usable = self._usable(broker), self._usable(default)
        self._use(self._sources._replace(dynamic=usable[0], dynamic_default=usable[1]))
        for name in sorted({*usable[0], *usable[1]} - BROKER_KEYS.keys()):
            self._report_inert(name, None)
        for callback in list(self._subscribers):
            callback()

    def with_defaults(self, default: Mapping[str, str]) -> "BrokerConfigs":
        """The settings of a broker without dynamic settings of its own; a snapshot."""
        other = BrokerConfigs(self._sources.static, reported=self._reported)
        other._use(other._sources._replace(dynamic_default=other._usable(default)))
        return other

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every dynamic change."""
        self._subscribers.append(callback)

    def check_broker_configs(
        self, configs: Mapping[str, str], *, former: Mapping[str, str], is_default: bool
    ) -> None:
        """Raise unless these dynamic settings may follow `former`, of this broker or of all.

        InvalidConfigRequest for a key that cannot be changed this way, and, as in Kafka, for an
        invalid value. Keys without effect and unknown names may be set.
        """
        if len(configs) > CONFIG_KEYS_PER_RESOURCE_MAX:
            raise InvalidConfigRequest(f"more than {CONFIG_KEYS_PER_RESOURCE_MAX} settings")
        for name, text in configs.items():
            if former.get(name) != text:
                key = broker_key(name)
                value = _check_dynamic(key, text, is_default=is_default)
                if name not in BROKER_KEYS:
                    # The controller checks other brokers' settings too: their value is compared.
                    current = former.get(name) or self._sources.text(key)
                    _check_inert(name, value, current=current)
        usable = self._usable(configs)
        sources = self._sources
        after = (
            sources._replace(dynamic_default=usable)
            if is_default
            else sources._replace(dynamic=usable)
        )
        try:
            _topic_defaults(_broker_values(after))
        except InvalidConfig as error:
            raise InvalidConfigRequest(str(error)) from None

    def _usable(self, configs: Mapping[str, str]) -> dict[str, str]:
        """Without values that this version of the program rejects; they were checked when set."""
        usable = {}
        for name, text in configs.items():
            try:
                _check_dynamic(broker_key(name), text, is_default=False)
            except (InvalidConfig, InvalidConfigRequest) as error:
                self._report_ignored(name, text, error)
            else:
                usable[name] = text
        return usable

    def _report_ignored(self, name: str, text: str, error: Exception) -> None:
        if (name, text) not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add((name, text))
            log.warning("stored setting ignored", name=name, reason=str(error))

    def _report_inert(self, name: str, reason: str | None) -> None:
        if (name, "") not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add((name, ""))
            log.warning("setting has no effect", name=name, reason=reason or _why_inert(name))

    def _use(self, sources: Sources) -> None:
        values = _broker_values(sources)
        self._topic_defaults = _topic_defaults(values)
        self._values = values
        self._sources = sources

    # -- descriptions ----------------------------------------------------------------------

    def describe_topic(
        self, topic_configs: Mapping[str, str], names: Collection[str] | None
    ) -> list[ConfigEntry]:
        """The topic's settings by name; all of them without names."""
        values = self._topic_values(topic_configs)
        return [
            topic_entry(key, values[key.name], topic_configs, self._sources)
            for key in shown_topic_keys(topic_configs, names)
            if key.name in values
        ]

    def describe_group(
        self, group_configs: Mapping[str, str], names: Collection[str] | None
    ) -> list[ConfigEntry]:
        """The group's settings by name; all of them without names."""
        return [
            group_entry(key, group_configs, self._sources)
            for key in named(GROUP_KEYS.values(), names)
        ]

    def describe_broker(self, names: Collection[str] | None) -> list[ConfigEntry]:
        """This broker's settings by name; all of them without names."""
        keys = shown_broker_keys(self._sources, names)
        return [broker_entry(key, self._sources) for key in keys]

    def describe_default(self, names: Collection[str] | None) -> list[ConfigEntry]:
        """The dynamic defaults of all brokers that are set."""
        only = Sources(dynamic_default=self._sources.dynamic_default)
        return [
            broker_entry(key, only, is_default=True)
            for key in shown_broker_keys(only, names)
            if key.name in only.dynamic_default
        ]


def _is_kept(name: str, text: str) -> bool:
    """Whether a setting of the file is used, or can at least be described."""
    if name in BROKER_KEYS or name in LATER_KEYS:
        return True
    key = broker_key(name)
    if key.mode is Mode.READ_ONLY:
        return False  # of Kafka's read-only keys only the names are known
    try:
        key.parse(text)
    except InvalidValue:
        return False
    return True


def _check_inert(name: str, value: Value, *, current: str | None) -> None:
    from millstream.model.config.inert_keys import check_pool  # hardly any broker sets such a key

    check_pool(name, value, current=current)


def _why_inert(name: str) -> str:
    if name in LATER_KEYS:
        return "it is for a feature that is not supported yet"
    from millstream.model.config.inert_keys import why_inert

    return why_inert(name)


def _with_ids(static: Mapping[str, str], broker_id: BrokerId | None) -> dict[str, str]:
    """The settings with both node.id and broker.id, which are the same, or with neither."""
    numbers = {
        name: BROKER_KEYS[NODE_ID].parse(static[name])
        for name in (NODE_ID, BROKER_ID)
        if name in static and static[name].strip() != "-1"
    }
    if broker_id is not None:
        numbers["the broker's id"] = broker_id
    if len(set(numbers.values())) > 1:
        values = ", ".join(f"{name} is {number}" for name, number in numbers.items())
        raise InvalidConfig(f"{values}: they must be the same")
    if not numbers:
        return {name: text for name, text in static.items() if name not in (NODE_ID, BROKER_ID)}
    number = str(next(iter(numbers.values())))
    return {**static, NODE_ID: number, BROKER_ID: number}


def _check_dynamic(key: ConfigKey, text: str, *, is_default: bool) -> Value:
    if key.mode is Mode.READ_ONLY:
        raise InvalidConfigRequest(f"{key.name} cannot be changed while the broker runs")
    if is_default and key.mode is Mode.PER_BROKER:
        raise InvalidConfigRequest(f"{key.name} can only be changed for one broker by its id")
    try:
        return key.parse(text)
    except InvalidValue as error:
        raise InvalidConfigRequest(str(error)) from None


def _broker_values(sources: Sources) -> Values:
    """Every key's value in force; raises InvalidConfig."""
    values: Values = {}
    for name, key in (*BROKER_KEYS.items(), *LATER_KEYS.items()):
        text = sources.text(key)
        values[name] = None if text is None else key.parse(text)
    for name, others in FALLBACKS.items():
        for other, factor in others:
            value = values[other]
            if values[name] is None and value is not None:
                values[name] = value * factor if isinstance(value, int) else value
    values[BROKER_ID] = values[NODE_ID]
    overrides = str(values["max.connections.per.ip.overrides"] or "")
    if values["max.connections.per.ip"] == 0 and not has_room_in(overrides):
        raise InvalidConfig(
            "max.connections.per.ip may be 0 only if max.connections.per.ip.overrides lets at least"
            " one address connect"
        )
    check_coordinator_values(values)
    return values


def _topic_defaults(broker_values: Values) -> Values:
    """The settings of topics without settings of their own; raises InvalidConfig."""
    defaults: Values = {
        name: broker_values[key.synonyms[0]] if key.synonyms else _own_default(key)
        for name, key in TOPIC_KEYS.items()
    }
    retention_ms = defaults["retention.ms"]
    if isinstance(retention_ms, int) and retention_ms < 0:
        defaults["retention.ms"] = -1
    check_together(defaults)
    return defaults


def _own_default(key: ConfigKey) -> Value | None:
    """Of a topic's key without a broker's key."""
    return None if key.default is None else key.parse(key.default)


def _log_config(values: Values, producer_expiration_ms: int) -> LogConfig:
    policies = values["cleanup.policy"]
    has_policy = policies if isinstance(policies, list) else []
    codec = _CODECS.get(_text(values, "compression.type"))
    segment_bytes = _number(values, "segment.bytes")
    if values["internal.segment.bytes"] is not None:
        segment_bytes = _number(values, "internal.segment.bytes")
    ratio = values["min.cleanable.dirty.ratio"]
    return LogConfig(
        segment_bytes=segment_bytes,
        segment_ms=_number(values, "segment.ms"),
        segment_jitter_ms=_number(values, "segment.jitter.ms"),
        # Kafka allows 4, which is less than an entry.
        segment_index_bytes=max(_INDEX_ENTRY_BYTES, _number(values, "segment.index.bytes")),
        index_interval_bytes=_number(values, "index.interval.bytes"),
        flush_messages=_number(values, "flush.messages"),
        flush_ms=_number(values, "flush.ms"),
        retention_ms=_number(values, "retention.ms"),
        retention_bytes=max(-1, _number(values, "retention.bytes")),
        max_message_bytes=_number(values, "max.message.bytes"),
        cleanup_delete="delete" in has_policy,
        cleanup_compact="compact" in has_policy,
        delete_retention_ms=_number(values, "delete.retention.ms"),
        min_compaction_lag_ms=_number(values, "min.compaction.lag.ms"),
        max_compaction_lag_ms=_number(values, "max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(ratio) if isinstance(ratio, float) else 0.5,
        compression=codec,
        compression_level=_level(values, codec),
        timestamp_type=TimestampType(_text(values, "message.timestamp.type")),
        timestamp_before_max_ms=_number(values, "message.timestamp.before.max.ms"),
        timestamp_after_max_ms=_number(values, "message.timestamp.after.max.ms"),
        file_delete_delay_ms=_number(values, "file.delete.delay.ms"),
        producer_expiration_ms=producer_expiration_ms,
    )


def _level(values: Values, codec: Codec | None) -> int | None:
    key = _LEVEL_KEYS.get(codec) if codec is not None else None
    if key is None:
        return None
    level = _number(values, key)
    return None if codec is Codec.GZIP and level == GZIP_DEFAULT_LEVEL else level


def _number(values: Values, name: str) -> int:
    value = values[name]
    if not isinstance(value, int):
        raise KeyError(f"{name} is not an integer: {value!r}")
    return value


def _text(values: Values, name: str) -> str:
    value = values[name]
    return value if isinstance(value, str) else ""
