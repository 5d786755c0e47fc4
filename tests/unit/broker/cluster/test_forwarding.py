"""Requests that are the controller's: any broker takes them, and the controller answers.

Envelope, which carries them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from kits.broker.topic_handlers_kit import Desk
from kits.rpc.rpc_server import PORT, Asked, Server, Session, frame_of
from millstream.broker.cluster.forwarding import FORWARDED, Forwarding, Route
from millstream.broker.handlers import envelope
from millstream.broker.requests.context import Peer, RequestFacts
from millstream.broker.requests.dispatch import SMALL_BODY_BYTES, Dispatch
from millstream.broker.requests.response_collector import CollectingPeer
from millstream.broker.requests.tasks import TaskScope
from millstream.controller.cluster.errors import NotController
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.observe.log_format import FIELDS_ATTRIBUTE
from millstream.rpc.connections import Address, Connections
from millstream.rpc.settings import RpcSettings
from millstream.runtime.scheduler import CooperativeScheduler
from millstream.testing.sim.world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest

VERSION = 5
CORRELATION = 4711
HERE = Route(is_local=True, address=None)
NOWHERE = Route(is_local=False, address=None)


def at(host: str) -> Route:
    return Route(is_local=False, address=Address(host, PORT, "forward"))


class Noted(CollectingPeer):
    """A client that notes whether it was held back."""

    def __init__(self) -> None:
        super().__init__(listener="PLAINTEXT", client_host="10.0.0.9", local_host="10.0.0.1")
        self.muted: list[str] = []

    def note_not_controller(self) -> None:
        """A client reads it in the answer."""

    def mute(self) -> None:
        self.muted.append("mute")

    def unmute(self) -> None:
        self.muted.append("unmute")

    def hold(self, number: int) -> None:
        del number
        self.muted.append("hold")

    def let_go(self, number: int) -> None:
        del number
        self.muted.append("let go")


class Controllers:
    """Brokers that answer Envelopes, each as a test wants it."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, EnvelopeRequest]] = []
        self.received = asyncio.Event()

    def server(self, name: str, code: ErrorCode = ErrorCode.NONE) -> Server:
        def on_request(session: Session, received: Asked) -> None:
            assert received.key is ApiKey.ENVELOPE
            request = EnvelopeRequest.decode(received.body, received.version)
            self.opened.append((name, request))
            self.received.set()
            answer = EnvelopeResponse(response_data=None, error_code=code)
            if code is ErrorCode.NONE:
                answer = EnvelopeResponse(response_data=_answer_to(request, name))
            session.transport.write(frame_of(received, answer.encode(received.version)))

        return Server(on_request)

    def configuring(self, name: str) -> Server:
        """Refuses every second resource."""

        def on_request(session: Session, received: Asked) -> None:
            request = EnvelopeRequest.decode(received.body, received.version)
            self.opened.append((name, request))
            header, begin = decode_request_header(request.request_data)
            inner = IncrementalAlterConfigsRequest.decode(
                memoryview(request.request_data)[begin:], header.api_version
            )
            responses = [
                AlterConfigsResourceResponse(
                    error_code=ErrorCode.INVALID_CONFIG if number % 2 else 0,
                    error_message=f"by {name}",
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                )
                for number, one in enumerate(inner.resources)
            ]
            top = encode_response_header(header.api_key, header.api_version, header.correlation_id)
            body = IncrementalAlterConfigsResponse(responses=responses).encode(header.api_version)
            answer = EnvelopeResponse(response_data=top + body)
            session.transport.write(frame_of(received, answer.encode(received.version)))

        return Server(on_request)

    def silent(self, name: str) -> Server:
        def on_request(session: Session, received: Asked) -> None:
            del session
            self.opened.append((name, EnvelopeRequest.decode(received.body, received.version)))
            self.received.set()

        return Server(on_request)


def _answer_to(request: EnvelopeRequest, name: str) -> bytes:
    header, begin = decode_request_header(request.request_data)
    received = CreateTopicsRequest.decode(
        memoryview(request.request_data)[begin:], header.api_version
    )
    topics = [CreatableTopicResult(name=f"{one.name} by {name}") for one in received.topics]
    top = encode_response_header(header.api_key, header.api_version, header.correlation_id)
    return top + CreateTopicsResponse(topics=topics).encode(header.api_version)


class World:
    """One broker with clients, and the controllers it may find."""

    def __init__(self) -> None:
        self.sim = SimWorld(21)
        self.desk = Desk()
        self.route = NOWHERE
        self.controllers = Controllers()
        self.servers: dict[str, Server] = {}

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            for name, server in self.servers.items():
                await server.listen(self.sim.network.host(name), name)
            node = self.sim.node("broker")
            self.tasks = TaskScope(ClientLog(node.clock))
            self.connections = Connections(node.network, RpcSettings(), node.randomness)
            services = self.desk.services
            services.metrics = BrokerMetrics()
            scheduler = CooperativeScheduler(node.background, self.tasks.spawn)
            self.dispatch = Dispatch(
                lambda: services,
                self.tasks.spawn,
                scheduler,
                forwarders=dict.fromkeys(FORWARDED, self._forward),
            )
            services.responder = self.dispatch
            self.forwarding = Forwarding(
                self.dispatch,
                lambda: services,
                lambda: self.route,
                self.connections,
                spawn=self.tasks.spawn,
                scheduler=scheduler,
                timeout_s=30.0,
            )
            await story()
            assert not len(self.tasks), "I-42 a request was left behind"
            await self.connections.close()

        self.sim.run(main)

    def _forward(self, peer: Peer, facts: RequestFacts, body: memoryview) -> None:
        self.forwarding.take(peer, facts, body)

    def send(self, request: Any, version: int = VERSION) -> Noted:
        body = request.encode(version)
        peer = Noted()
        facts = RequestFacts(
            int(type(request).API_KEY), version, CORRELATION, "me", 1, 0, len(body)
        )
        self.dispatch.handle(peer, facts, memoryview(bytearray(body)))
        return peer


def creation(*names: str, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=one, num_partitions=1, replication_factor=1) for one in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)


async def results_of(peer: Noted) -> list[tuple[str, int]]:
    data = await peer.response
    await asyncio.sleep(0)
    correlation_id, begin = decode_response_header(data, ApiKey.CREATE_TOPICS, VERSION)
    assert correlation_id == CORRELATION
    answer = CreateTopicsResponse.decode(memoryview(data)[begin:], VERSION)
    return [(one.name, one.error_code) for one in answer.topics]


def test_bytes_of_request_and_answer_pass_unchanged() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1")
    world.route = at("c1")

    async def story() -> None:
        assert await results_of(world.send(creation("t"))) == [("t by c1", 0)]
        ((_, request),) = world.controllers.opened
        header = encode_request_header(ApiKey.CREATE_TOPICS, VERSION, CORRELATION, "me")
        assert bytes(request.request_data) == header + creation("t").encode(VERSION)
        assert bytes(request.client_host_address) == b"10.0.0.9"
        assert not world.desk.topics, "nothing was made here"

    world.play(story)


def test_controller_serves_its_own_clients() -> None:
    world = World()
    world.route = HERE

    async def story() -> None:
        assert await results_of(world.send(creation("t"))) == [("t", 0)]
        assert world.desk.topics == {"t": 1}

    world.play(story)


def test_deposed_controller_is_followed_by_the_next() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1", ErrorCode.NOT_CONTROLLER)
    world.servers["c2"] = world.controllers.server("c2")
    world.route = at("c1")

    async def story() -> None:
        peer = world.send(creation("t"))
        await world.controllers.received.wait()
        world.route = at("c2")
        assert await results_of(peer) == [("t by c2", 0)]

    world.play(story)


def test_own_controller_that_is_deposed_while_it_serves_passes_the_request_on() -> None:
    world = World()
    world.servers["c2"] = world.controllers.server("c2")
    world.route = HERE

    async def deposed(*_: Any, **__: Any) -> Any:
        world.route = at("c2")
        raise NotController

    async def story() -> None:
        world.desk.controller.create_topics = deposed  # type: ignore[method-assign]
        assert await results_of(world.send(creation("t"))) == [("t by c2", 0)]

    world.play(story)


def test_controller_that_hangs_is_left_for_the_next() -> None:
    world = World()
    world.servers["c1"] = world.controllers.silent("c1")
    world.servers["c2"] = world.controllers.server("c2")
    world.route = at("c1")

    async def story() -> None:
        peer = world.send(creation("t"))
        await world.controllers.received.wait()
        world.route = at("c2")
        began_s = asyncio.get_running_loop().time()
        assert await results_of(peer) == [("t by c2", 0)]
        assert asyncio.get_running_loop().time() - began_s < 2

    world.play(story)


@pytest.mark.parametrize("route", [NOWHERE, at("nobody")])
def test_without_a_controller_the_client_is_told_when_its_time_is_over(route: Route) -> None:
    world = World()
    world.route = route

    async def story() -> None:
        began_s = asyncio.get_running_loop().time()
        peer = world.send(creation("a", "b", timeout_ms=3000))
        code = int(ErrorCode.NOT_CONTROLLER)
        assert await results_of(peer) == [("a", code), ("b", code)]
        assert asyncio.get_running_loop().time() - began_s <= 3.5

    world.play(story)


def test_controller_that_comes_in_time_is_waited_for() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1")

    async def story() -> None:
        peer = world.send(creation("t"))
        await asyncio.sleep(2)
        world.route = at("c1")
        assert await results_of(peer) == [("t by c1", 0)]

    world.play(story)


def test_large_request_holds_its_connection_back() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1")
    world.route = at("c1")

    async def story() -> None:
        names = [f"topic-{number}" for number in range(500)]
        peer = world.send(creation(*names))
        assert len(await results_of(peer)) == 500
        size = len(creation(*names).encode(VERSION))
        assert size > SMALL_BODY_BYTES
        assert peer.muted == ["mute", "hold", "let go", "unmute"]

    world.play(story)


def test_malformed_request_closes_the_connection_and_goes_nowhere() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1")
    world.route = at("c1")

    async def story() -> None:
        peer = Noted()
        facts = RequestFacts(int(ApiKey.CREATE_TOPICS), VERSION, CORRELATION, "me", 1, 0, 3)
        world.dispatch.handle(peer, facts, memoryview(b"\xff\xff\xff"))
        with pytest.raises(Exception, match="malformed CREATE_TOPICS"):
            await peer.response
        await asyncio.sleep(0)
        assert not world.controllers.opened

    world.play(story)


def test_levels_of_loggers_are_this_brokers_own() -> None:
    world = World()
    world.servers["c1"] = world.controllers.server("c1")
    world.route = at("c1")

    async def story() -> None:
        level = AlterableConfig(name="root", config_operation=0, value="INFO")
        resource = AlterConfigsResource(resource_type=8, resource_name="1", configs=[level])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        await world.send(request, 1).response
        await asyncio.sleep(0)
        assert not world.controllers.opened

    world.play(story)


# -- the other side ----------------------------------------------------------------------------


class Member:
    """A place in a cluster."""

    def __init__(self, *, is_active: bool) -> None:
        self.is_active = is_active


def enveloped(request: Any, version: int) -> EnvelopeRequest:
    header = encode_request_header(type(request).API_KEY, version, CORRELATION, "me")
    data = header + request.encode(version)
    return EnvelopeRequest(request_data=data, client_host_address=b"10.0.0.9")


def opened(world: World, request: EnvelopeRequest) -> EnvelopeResponse:
    found: list[EnvelopeResponse] = []

    async def story() -> None:
        answer = await world.desk.serve(envelope, request, EnvelopeResponse, 0)
        await asyncio.sleep(0)
        found.append(answer)

    world.play(story)
    return found[0]


def mixed(*names: str) -> IncrementalAlterConfigsRequest:
    """Loggers of broker 1 for names that are numbers, topics for the others."""
    level = AlterableConfig(name="root", config_operation=0, value="INFO")
    retention = AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resources = [
        AlterConfigsResource(
            resource_type=8 if name.isdigit() else 2,
            resource_name=name,
            configs=[level if name.isdigit() else retention],
        )
        for name in names
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


async def altered(peer: Noted, version: int) -> list[tuple[str, int, str | None]]:
    data = await peer.response
    await asyncio.sleep(0)
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    correlation_id, begin = decode_response_header(data, key, version)
    assert correlation_id == CORRELATION
    answer = IncrementalAlterConfigsResponse.decode(memoryview(data)[begin:], version)
    return [(one.resource_name, one.error_code, one.error_message) for one in answer.responses]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("filler", [0, 300])
def test_levels_beside_other_settings_are_set_here_and_the_rest_is_passed_on(
    version: int, filler: int
) -> None:
    """One answer, in the order of the request; also of one that is large."""
    world = World()
    world.servers["c1"] = world.controllers.configuring("c1")
    world.route = at("c1")
    names = ["a", "1", "b", *(f"t{number}" for number in range(filler)), "2"]

    async def story() -> None:
        found = await altered(world.send(mixed(*names), version), version)
        assert [name for name, *_ in found] == names
        by_name = {name: rest for name, *rest in found}
        assert by_name["1"] == [0, None]
        assert by_name["2"][0] == ErrorCode.INVALID_REQUEST, "another broker's loggers"
        assert by_name["a"] == [0, "by c1"]
        assert by_name["b"] == [ErrorCode.INVALID_CONFIG, "by c1"]
        ((_, request),) = world.controllers.opened
        header, begin = decode_request_header(request.request_data)
        body = memoryview(request.request_data)[begin:]
        inner = IncrementalAlterConfigsRequest.decode(body, header.api_version)
        assert [one.resource_name for one in inner.resources] == [
            one for one in names if not one.isdigit()
        ]
        assert inner.validate_only

    world.play(story)


def test_levels_are_told_as_set_though_no_controller_is_found() -> None:
    world = World()

    async def story() -> None:
        found = await altered(world.send(mixed("a", "1"), 1), 1)
        assert [(name, code) for name, code, _ in found] == [
            ("a", ErrorCode.NOT_CONTROLLER),
            ("1", 0),
        ]

    world.play(story)


def test_envelope_is_opened_and_its_request_served() -> None:
    world = World()
    answer = opened(world, enveloped(creation("t"), VERSION))
    assert answer.error_code == 0
    data = bytes(answer.response_data or b"")
    correlation_id, begin = decode_response_header(data, ApiKey.CREATE_TOPICS, VERSION)
    topics = CreateTopicsResponse.decode(data[begin:], VERSION).topics
    assert (correlation_id, [one.name for one in topics]) == (CORRELATION, ["t"])
    assert world.desk.topics == {"t": 1}


def test_envelope_is_refused_by_a_broker_that_is_not_the_controller() -> None:
    world = World()
    world.desk.services.membership = cast("Any", Member(is_active=False))
    answer = opened(world, enveloped(creation("t"), VERSION))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert not world.desk.topics


def test_envelope_with_anything_else_is_refused() -> None:
    junk = EnvelopeRequest(request_data=b"\0\1", client_host_address=b"")
    assert opened(World(), junk).error_code == ErrorCode.INVALID_REQUEST
    other = enveloped(MetadataRequest(topics=None), 12)
    assert opened(World(), other).error_code == ErrorCode.INVALID_REQUEST
    cut = enveloped(creation("t"), VERSION)
    cut.request_data = cut.request_data[:-3]
    assert opened(World(), cut).error_code == ErrorCode.INVALID_REQUEST


def test_controller_that_is_deposed_while_it_serves_says_so_in_the_envelope() -> None:
    world = World()

    async def deposed(*_: Any, **__: Any) -> Any:
        raise NotController

    world.desk.controller.create_topics = deposed  # type: ignore[method-assign]
    with pytest.raises(NotController):
        opened(world, enveloped(creation("t"), VERSION))


def test_malformed_envelopes_cost_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each was 20,000 lines in 2.3 s; the address is the original client's."""
    world = World()
    request = EnvelopeRequest(request_data=b"\x00", client_host_address=b"10.0.0.9")
    refused = enveloped(creation("t"), VERSION)
    refused.request_data = bytes(refused.request_data)[:-3]

    async def story() -> None:
        for _ in range(500):
            for sent in (request, refused):
                answer = await world.desk.serve(envelope, sent, EnvelopeResponse, 0)
                assert answer.error_code == ErrorCode.INVALID_REQUEST

    world.play(story)
    messages = [one.getMessage() for one in caplog.records]
    assert messages == ["envelope without a request", "forwarded request refused"]
    (fields,) = {str(getattr(one, FIELDS_ATTRIBUTE)["client"]) for one in caplog.records}
    assert fields == "10.0.0.9"
