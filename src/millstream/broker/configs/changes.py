"""Changes of settings by clients: applies both Alter requests.

All changes on one broker are made one after the other, because each is computed from the settings
that the one before left.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from millstream.broker.configs import group_configs
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.controller.cluster.errors import NotController
from millstream.controller.errors import UnknownTopic
from millstream.controller.topics import check_topic_name
from millstream.model.config.broker_keys import LOG_LEVELS, broker_key
from millstream.model.config.definition import ConfigKey, ConfigType, split_list
from millstream.model.config.errors import InvalidConfig, InvalidConfigRequest, RefusedConfig
from millstream.model.config.group_keys import group_key
from millstream.model.config.resources import ResourceType
from millstream.model.config.topic_keys import topic_key
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId
from millstream.model.limits import CONFIG_KEYS_PER_RESOURCE_MAX
from millstream.observe import logs
from millstream.wire.errors import ErrorCode

log = logs.get_logger("millstream.broker.configs")


class Operation(IntEnum):
    """What to do with a key, as IncrementalAlterConfigs numbers it."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS: Final = frozenset(Operation)


class KeyChange(NamedTuple):
    """One key's part of a change."""

    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """The requested change of one resource's settings."""

    resource_type: int
    resource_name: str
    keys: Sequence[KeyChange]
    is_whole: bool
    """The keys replace all settings; every other key is removed."""


class Outcome(NamedTuple):
    """Of one resource."""

    code: ErrorCode
    text: str | None


DONE: Final = Outcome(ErrorCode.NONE, None)
_ID_DIGITS_MAX: Final = 10
MIN_IN_SYNC: Final = "min.insync.replicas"


async def alter_resources(
    context: Context, changes: Sequence[ResourceChange], *, validate_only: bool
) -> list[Outcome]:
    """Make the changes in their order; each resource's outcome is its own."""
    times = Counter((one.resource_type, one.resource_name) for one in changes)
    outcomes = []
    async with context.services.configs.altering:
        for one in changes:
            await asyncio.sleep(0)  # each may have many keys to check
            try:
                if times[one.resource_type, one.resource_name] > 1:
                    raise InvalidConfigRequest("the resource is in the request twice")
                await _alter(context, one, validate_only=validate_only)
            except NotController:
                raise  # not of this resource: the whole request goes to the next controller
            except OperatingError as error:
                outcomes.append(Outcome(code_of(error), text_of(error)))
            else:
                outcomes.append(DONE)
    return outcomes


async def _alter(context: Context, change: ResourceChange, *, validate_only: bool) -> None:
    _check_keys(change.keys)
    match change.resource_type:
        case ResourceType.TOPIC:
            await _alter_topic(context, change, validate_only=validate_only)
        case ResourceType.BROKER:
            await _alter_broker(context, change, validate_only=validate_only)
        case ResourceType.BROKER_LOGGER if not change.is_whole:
            check_broker_name(change.resource_name, context.services.broker_id)
            _alter_loggers(context, change.keys, validate_only=validate_only)
        case ResourceType.CLIENT_METRICS:
            _refuse(change, "clients do not send telemetry")
        case ResourceType.GROUP:
            await _alter_group(context, change, validate_only=validate_only)
        case other:
            raise InvalidConfigRequest(f"resources of type {other} have no settings to change")


def _check_keys(keys: Sequence[KeyChange]) -> None:
    if len(keys) > CONFIG_KEYS_PER_RESOURCE_MAX:
        raise InvalidConfigRequest(
            f"{len(keys)} keys of one resource; at most {CONFIG_KEYS_PER_RESOURCE_MAX} are allowed"
        )
    twice = [name for name, times in Counter(one.name for one in keys).items() if times > 1]
    if twice:
        raise InvalidConfigRequest(f"keys that are in the request twice: {', '.join(twice)}")
    for one in keys:
        if one.operation not in _OPERATIONS:
            raise InvalidConfigRequest(f"{one.name}: there is no operation {one.operation}")
        if one.value is None and one.operation != Operation.DELETE:
            raise InvalidConfigRequest(f"{one.name} has no value")


def apply_operations(
    former: Mapping[str, str], keys: Sequence[KeyChange], key_of: Callable[[str], ConfigKey]
) -> dict[str, str]:
    """The settings after the operations; raises InvalidConfig for one that a key does not allow."""
    configs = dict(former)
    for name, operation, value in keys:
        if operation == Operation.DELETE or value is None:
            configs.pop(name, None)
        elif operation == Operation.SET:
            configs[name] = value
        else:
            key = key_of(name)
            if key.type is not ConfigType.LIST:
                raise InvalidConfig(
                    f"{name} is not a list: it can be set, not appended to or subtracted from"
                )
            members = split_list(configs.get(name, key.default or ""))
            if operation == Operation.APPEND:
                members = list(dict.fromkeys([*members, *split_list(value)]))
            else:
                members = [one for one in members if one not in split_list(value)]
            configs[name] = ",".join(members)
    return configs


# -- topics and brokers ----------------------------------------------------------------------------


async def _alter_topic(context: Context, change: ResourceChange, *, validate_only: bool) -> None:
    services = context.services
    name = change.resource_name
    if not name:
        raise InvalidConfigRequest(
            "a topic name is required: defaults for all topics are broker settings"
        )
    check_topic_name(name)
    topic = services.controller.deciding_image.topics.get(name)
    former = topic.configs if topic is not None and not change.is_whole else {}
    configs = apply_operations(former, change.keys, topic_key)
    services.configs.check_topic_configs(configs)
    if topic is None:
        raise UnknownTopic(name)
    await services.controller.alter_topic_configs(name, configs, validate_only=validate_only)


async def _alter_broker(context: Context, change: ResourceChange, *, validate_only: bool) -> None:
    services = context.services
    name = change.resource_name
    if name:
        # In a cluster the controller has every broker's; a standalone broker only its own.
        broker_id = services.broker_id if services.membership is None else None
        name = str(check_broker_name(name, broker_id))
    former = services.controller.deciding_image.broker_configs.get(name, {})
    if name:
        _check_one_for_all(change.keys, former)
    configs = apply_operations({} if change.is_whole else former, change.keys, broker_key)
    services.configs.check_broker_configs(configs, former=former, is_default=not name)
    await services.controller.alter_broker_configs(name, configs, validate_only=validate_only)


def _check_one_for_all(keys: Sequence[KeyChange], former: Mapping[str, str]) -> None:
    """Raise InvalidConfig if one broker would get a minimum of its own.

    With a smaller one than the controller's, its high watermarks would advance without replicas
    that the controller considers eligible, and electing them would lose records (KIP-966).
    A value that an older version accepted can be removed.
    """
    for one in keys:
        is_removal = one.operation == Operation.DELETE and one.name in former
        if one.name == MIN_IN_SYNC and not is_removal:
            raise InvalidConfig(
                f"{one.name} is the same for all brokers: it cannot be set for a single one"
            )


async def _alter_group(context: Context, change: ResourceChange, *, validate_only: bool) -> None:
    services = context.services
    if not change.resource_name:
        raise InvalidConfigRequest(
            "a group name is required: defaults for all groups are broker settings"
        )
    name = group_configs.name_of(change.resource_name)
    former = services.controller.deciding_image.broker_configs.get(name, {})
    configs = apply_operations({} if change.is_whole else former, change.keys, group_key)
    services.configs.check_group_configs(configs)
    await services.controller.alter_broker_configs(name, configs, validate_only=validate_only)


def check_broker_name(name: str, broker_id: BrokerId | None) -> BrokerId:
    """The resource's name as a broker id; raises InvalidConfigRequest unless it is `broker_id`."""
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _ID_DIGITS_MAX):
        raise InvalidConfigRequest(f"a broker's id is a number, not {name!r}")
    if broker_id is not None and int(name) != broker_id:
        raise InvalidConfigRequest(
            f"this is broker {broker_id}, not {name}: send the request to that one"
        )
    return BrokerId(int(name))


# -- others ----------------------------------------------------------------------------------------


def _alter_loggers(context: Context, keys: Sequence[KeyChange], *, validate_only: bool) -> None:
    """Set levels of our loggers until the process ends; all are checked before any is changed."""
    known = logs.logger_levels()
    for name, operation, value in keys:
        if operation not in (Operation.SET, Operation.DELETE):
            raise InvalidConfigRequest(f"{name}: a level can be set or removed, nothing else")
        if name not in known:
            raise InvalidConfig(f"there is no logger {name!r}")
        if operation == Operation.SET and value not in LOG_LEVELS:
            allowed = ", ".join(LOG_LEVELS)
            raise InvalidConfig(f"{name}: there is no level {value!r}, only {allowed}")
        if operation == Operation.DELETE and name == logs.ROOT_NAME:
            raise InvalidConfigRequest("the root logger must have a level")
    if validate_only:
        return
    for name, _, value in keys:
        if value is None:
            logs.reset_logger_level(name)
        else:
            logs.set_logger_level(name, value)
        # `logger` and `level` are fields of every line.
        context.services.client_log.change(
            log, "log level changed", changed=name, new_level=value or "inherited"
        )


def _refuse(change: ResourceChange, reason: str) -> None:
    if not change.resource_name:
        raise InvalidConfigRequest("the resource has no name")
    for one in change.keys:
        if one.operation != Operation.DELETE:
            raise RefusedConfig(one.name, reason=reason)
