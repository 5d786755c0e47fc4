"""A client that has changed topics asks for them next: its broker should know them by then.

The controller answers when a change is written; brokers hear of it a moment later. The broker that
passes the answer on waits for that moment. Others may be later still, as in Kafka.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from millstream.controller.image import ClusterImage
from millstream.model.ids import TopicId
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.headers import decode_response_header

WAIT_S: Final = 1.0
"""Then the answer leaves all the same."""

Condition = Callable[[ClusterImage], bool]


class Settling:
    """Waits until the image shows what an answer says."""

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


_CONDITIONS: Final[dict[ApiKey, Callable[[Any, Any], Condition]]] = {
    ApiKey.CREATE_TOPICS: _created,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _grown,
}
