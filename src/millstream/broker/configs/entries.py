"""Descriptions of settings: the value, its source, and its synonyms in order of precedence.

The order and choice of synonyms are Kafka's, oddities included: a key whose value comes from
another unit (`log.roll.ms` from `log.roll.hours`) shows as a default without synonyms.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from itertools import dropwhile
from typing import NamedTuple

from millstream.model.config.broker_keys import (
    BROKER_KEYS,
    LISTENER_PREFIX,
    broker_key,
    synonyms_of,
)
from millstream.model.config.definition import ConfigKey, ConfigType, Mode, Value, text_of
from millstream.model.config.errors import InvalidConfig, InvalidValue
from millstream.model.config.topic_keys import TOPIC_KEYS, topic_key


class ConfigSource(IntEnum):
    """Where a value was set, as DescribeConfigs numbers it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    """A source that sets the value; the first one is in force."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting, described."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]
    is_read_only: bool


class Sources(NamedTuple):
    """All settings of a broker, in order of precedence."""

    dynamic: Mapping[str, str] = {}
    dynamic_default: Mapping[str, str] = {}
    static: Mapping[str, str] = {}

    def text(self, key: ConfigKey) -> str | None:
        """The key's text in force."""
        for found in self:
            if key.name in found:
                return found[key.name]
        return key.default

    def names(self) -> set[str]:
        """Of all settings that were set."""
        return {name for found in self for name in found}


def shown_topic_keys(
    topic_configs: Mapping[str, str], names: Collection[str] | None
) -> list[ConfigKey]:
    """The keys to describe, of all or of the names; those without effect only if they are set."""
    keys = [key for key in TOPIC_KEYS.values() if key.is_always_shown or key.name in topic_configs]
    for name in sorted(topic_configs.keys() - TOPIC_KEYS.keys()):
        # Another version of this program may have stored a key that this one does not have.
        with suppress(InvalidConfig):
            keys.append(topic_key(name))
    return named(keys, names)


def shown_broker_keys(sources: Sources, names: Collection[str] | None) -> list[ConfigKey]:
    """The keys to describe, of all or of the names; those without effect only if they are set."""
    are_set = sources.names()
    keys = [key for key in BROKER_KEYS.values() if key.is_always_shown or key.name in are_set]
    keys.extend(broker_key(name) for name in sorted(are_set - BROKER_KEYS.keys()))
    return named(keys, names)


def named(keys: Iterable[ConfigKey], names: Collection[str] | None) -> list[ConfigKey]:
    """The keys with these names; all of them without names."""
    return [key for key in keys if not names or key.name in names]


def topic_entry(
    key: ConfigKey, value: Value | None, topic_configs: Mapping[str, str], sources: Sources
) -> ConfigEntry:
    """A topic's setting with its value in force."""
    text = _shown(key, value)
    synonyms: tuple[Synonym, ...] = ()
    if key.synonyms:
        synonyms = _broker_synonyms(broker_key(key.synonyms[0]), sources)
    if _is_own(key, topic_configs):
        synonyms = (Synonym(key.name, text, ConfigSource.TOPIC), *synonyms)
    return ConfigEntry(key, text, _strongest(synonyms), synonyms, is_read_only=False)


def group_entry(key: ConfigKey, group_configs: Mapping[str, str], sources: Sources) -> ConfigEntry:
    """A group's setting, as set for it or for all groups."""
    broker_key = BROKER_KEYS[key.synonyms[0]]
    synonyms = _broker_synonyms(broker_key, sources)
    text = sources.text(broker_key) or ""
    if _is_own(key, group_configs):
        text = text_of(key.parse(group_configs[key.name]))
        synonyms = (Synonym(key.name, text, ConfigSource.GROUP), *synonyms)
    return ConfigEntry(key, text, _strongest(synonyms), synonyms, is_read_only=False)


def broker_entry(key: ConfigKey, sources: Sources, *, is_default: bool = False) -> ConfigEntry:
    """A broker's setting; with `is_default` only as set for all brokers."""
    text = sources.text(key)
    synonyms = _broker_synonyms(key, sources)
    if is_default:
        wanted = ConfigSource.DYNAMIC_DEFAULT_BROKER
        synonyms = tuple(one for one in synonyms if one.source is wanted)
    value = None if text is None else _shown(key, key.parse(text))
    return ConfigEntry(key, value, _strongest(synonyms), synonyms, _is_shown_read_only(key))


def _is_shown_read_only(key: ConfigKey) -> bool:
    """As Kafka describes it, although it also accepts changes of names that it does not know."""
    is_known = key.type is not ConfigType.UNKNOWN and not key.name.startswith(LISTENER_PREFIX)
    return key.mode is Mode.READ_ONLY or not is_known


def _is_own(key: ConfigKey, topic_configs: Mapping[str, str]) -> bool:
    """Whether the topic has a value of its own in force; a stored one may be unusable."""
    text = topic_configs.get(key.name)
    if text is None:
        return False
    try:
        key.parse(text)
    except InvalidValue:
        return False
    return True


def _shown(key: ConfigKey, value: Value | None) -> str | None:
    return None if value is None or key.is_sensitive else text_of(value)


def _strongest(synonyms: tuple[Synonym, ...]) -> ConfigSource:
    return synonyms[0].source if synonyms else ConfigSource.DEFAULT


def _broker_synonyms(key: ConfigKey, sources: Sources) -> tuple[Synonym, ...]:
    found = _all_synonyms(key, sources)
    return tuple(dropwhile(lambda one: one.name != key.name, found))


def _all_synonyms(key: ConfigKey, sources: Sources) -> Iterator[Synonym]:
    names = synonyms_of(key.name)
    places = (
        (sources.dynamic, ConfigSource.DYNAMIC_BROKER),
        (sources.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (sources.static, ConfigSource.STATIC_BROKER),
    )
    for texts, source in places:
        for name in names:
            if name in texts:
                yield Synonym(name, None if key.is_sensitive else texts[name], source)
    for name in names:
        known = broker_key(name)
        if known.default is not None and not known.is_dynamic_only:
            yield Synonym(name, known.default, ConfigSource.DEFAULT)
