"""The answer to a change waits until this broker's own metadata shows it, and no longer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.broker.cluster.metadata_barrier import WAIT_S, MetadataBarrier
from millstream.controller.image import ClusterImage, TopicImage
from millstream.controller.topics import new_topic_id
from millstream.model.ids import BrokerId
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim import virtual_loop
from millstream.wire.headers import encode_response_header
from millstream.wire.messages import alter_configs, incremental_alter_configs

TOPIC, BROKER, LOGGER = 2, 4, 8
NEVER = "never"


def image(topic: dict[str, str], broker: dict[str, str]) -> ClusterImage:
    one = TopicImage("t", new_topic_id(SeededRandomness(1)), (), topic)
    return ClusterImage(
        cluster_id="c",
        controller_id=BrokerId(1),
        brokers={},
        topics={"t": one},
        broker_configs={"1": broker},
    )


def is_settled(request: Any, answer: Any, seen: ClusterImage) -> bool:
    """Whether the answer leaves at once with this image; else when its time is up."""

    async def wait_for(condition: Callable[[ClusterImage], bool]) -> None:
        if not condition(seen):
            await asyncio.Event().wait()

    async def story() -> bool:
        header = encode_response_header(type(request).API_KEY, 1, 7)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await MetadataBarrier(wait_for)(request, header + answer.encode(1), 1)
        taken_s = loop.time() - began_s
        assert taken_s == 0 or taken_s >= WAIT_S
        return taken_s == 0

    return virtual_loop.run(story)


def single(kind: int, name: str, *changes: tuple[str, int, str | None], code: int = 0) -> Any:
    m = incremental_alter_configs
    configs = [
        m.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = m.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = m.AlterConfigsResourceResponse(
        error_code=code, error_message=None, resource_type=kind, resource_name=name
    )
    return (
        m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False),
        m.IncrementalAlterConfigsResponse(responses=[response]),
    )


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "1")])
def test_single_settings_are_waited_for(kind: int, name: str) -> None:
    request, answer = single(kind, name, ("a", 0, "1"), ("b", 1, None))
    done, undone = {"a": "1"}, {"a": "1", "b": "2"}
    assert is_settled(request, answer, image(done, done))
    assert not is_settled(request, answer, image(undone, undone))
    assert not is_settled(request, answer, image({}, {}))


def test_what_was_refused_checked_only_or_is_no_metadata_is_not_waited_for() -> None:
    request, answer = single(TOPIC, "t", ("a", 0, NEVER), code=40)
    assert is_settled(request, answer, image({}, {}))
    request, answer = single(TOPIC, "t", ("a", 0, NEVER))
    request.validate_only = True
    assert is_settled(request, answer, image({}, {}))
    request, answer = single(LOGGER, "1", ("root", 0, "INFO"))
    assert is_settled(request, answer, image({}, {}))
    request, answer = single(TOPIC, "t", ("a", 2, NEVER))
    assert is_settled(request, answer, image({}, {}))


def test_all_settings_of_a_resource_are_waited_for() -> None:
    m = alter_configs
    configs = [m.AlterableConfig(name="a", value="1")]
    resource = m.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=configs)
    response = m.AlterConfigsResourceResponse(
        error_code=0, error_message=None, resource_type=TOPIC, resource_name="t"
    )
    request = m.AlterConfigsRequest(resources=[resource], validate_only=False)
    answer = m.AlterConfigsResponse(responses=[response])
    assert is_settled(request, answer, image({"a": "1"}, {}))
    assert not is_settled(request, answer, image({"a": "1", "b": "2"}, {}))
