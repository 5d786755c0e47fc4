"""Delays the answer to a metadata change until this broker has the change.

A client that has changed topics or settings uses them next. The controller answers when a change is
written; brokers receive it a moment later. The broker that passes the answer on waits for that.
Others may be later still, as in Kafka.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from millstream.controller.image import ClusterImage
from millstream.model.config.resources import ResourceType
from millstream.model.ids import TopicId
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.headers import decode_response_header

WAIT_S: Final = 1.0
"""After that the answer is sent in any case."""

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

Condition = Callable[[ClusterImage], bool]


class MetadataBarrier:
    """Waits until the image has the change that an answer confirms."""

    def __init__(self, wait_for: Callable[[Condition], Any]) -> None:
        self._wait_for = wait_for

    async def __call__(self, request: Any, data: bytes, version: int) -> None:
        key = type(request).API_KEY
        make = _CONDITIONS.get(key)
        if make is None or getattr(request, "validate_only", False):
            return
        begin = decode_response_header(data, key, version)[1]
        answer = response_type(key).decode(memoryview(data)[begin:], version)
        try:
            async with asyncio.timeout(WAIT_S):
                await self._wait_for(make(request, answer))
        except TimeoutError:
            return


def _created(request: Any, answer: Any) -> Condition:
    del request
    names = [one.name for one in answer.topics if not one.error_code]
    return lambda image: all(name in image.topics for name in names)


def _deleted(request: Any, answer: Any) -> Condition:
    del request
    done = [one for one in answer.responses if not one.error_code]
    ids = [TopicId(one.topic_id) for one in done if one.topic_id.int]
    names = [one.name for one in done if not one.topic_id.int]
    return lambda image: (
        not any(one in image.topics_by_id for one in ids)
        and not any(name in image.topics for name in names)
    )


def _grown(request: Any, answer: Any) -> Condition:
    done = {one.name for one in answer.results if not one.error_code}
    wanted = {one.name: one.count for one in request.topics if one.name in done}

    def is_so(image: ClusterImage) -> bool:
        return all(
            name not in image.topics or len(image.topics[name].partitions) >= count
            for name, count in wanted.items()
        )

    return is_so


def _altered(request: Any, answer: Any) -> Condition:
    """Single settings; values appended to a list or subtracted from one are not checked."""
    wanted = [
        (one.resource_type, one.resource_name, config.name, _value(config))
        for one in _done(request, answer)
        for config in one.configs
        if config.config_operation in (_SET, _DELETE)
    ]
    return lambda image: all(
        _configs(image, kind, name).get(key) == value for kind, name, key, value in wanted
    )


def _replaced(request: Any, answer: Any) -> Condition:
    """All settings of a resource replaced."""
    wanted = [
        (
            one.resource_type,
            one.resource_name,
            {config.name: config.value for config in one.configs},
        )
        for one in _done(request, answer)
    ]
    return lambda image: all(_configs(image, kind, name) == all_ for kind, name, all_ in wanted)


def _done(request: Any, answer: Any) -> list[Any]:
    return [
        one
        for one, outcome in zip(request.resources, answer.responses, strict=True)
        if not outcome.error_code and one.resource_type in (ResourceType.TOPIC, ResourceType.BROKER)
    ]


def _value(config: Any) -> str | None:
    return config.value if config.config_operation == _SET else None


def _configs(image: ClusterImage, kind: int, name: str) -> Mapping[str, str]:
    if kind == ResourceType.BROKER:
        return image.broker_configs.get(name, {})
    topic = image.topics.get(name)
    return topic.configs if topic is not None else {}


_CONDITIONS: Final[dict[ApiKey, Callable[[Any, Any], Condition]]] = {
    ApiKey.CREATE_TOPICS: _created,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _grown,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered,
    ApiKey.ALTER_CONFIGS: _replaced,
}
