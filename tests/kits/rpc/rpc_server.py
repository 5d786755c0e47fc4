"""A broker for the tests of `rpc`: answers what it is asked, in order, or as a test tells it to."""

import asyncio
from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple, cast

from millstream.runtime.network import Listener, Network
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import decode_request_header, encode_response_header
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

SIZE = Struct(">i")
PORT = 9092


class Asked(NamedTuple):
    """One request as the server saw it."""

    key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body: bytes


def question(name: str) -> MetadataRequest:
    """A request whose answer carries its name."""
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def name_of(response: MetadataResponse) -> str | None:
    (topic,) = response.topics
    return topic.name


def frame_of(asked: Asked, body: bytes, *, version: int | None = None) -> bytes:
    """The whole response frame of a body."""
    header = encode_response_header(
        asked.key, asked.version if version is None else version, asked.correlation_id
    )
    return SIZE.pack(len(header) + len(body)) + header + body


def echo(asked: Asked) -> bytes:
    """The true answer to `question`."""
    request = MetadataRequest.decode(asked.body, asked.version)
    topics = [MetadataResponseTopic(name=one.name) for one in request.topics or []]
    return frame_of(asked, MetadataResponse(topics=topics).encode(asked.version))


def versions_answer(asked: Asked, ranges: Mapping[ApiKey, range]) -> bytes:
    """What Kafka answers to ApiVersions, also when it does not know the version."""
    keys = [
        ApiVersion(api_key=key, min_version=one.start, max_version=one.stop - 1)
        for key, one in ranges.items()
    ]
    served = ranges.get(ApiKey.API_VERSIONS, range(0))
    if asked.version not in served:
        mine = [one for one in keys if one.api_key == ApiKey.API_VERSIONS]
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=mine)
        return frame_of(asked, response.encode(0), version=0)
    return frame_of(asked, ApiVersionsResponse(api_keys=keys).encode(asked.version))


class Session(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._buffer = bytearray()
        self.asked: list[Asked] = []
        self.is_lost = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._server.sessions.append(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = SIZE.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            header, position = decode_request_header(memoryview(frame))
            asked = Asked(*header, frame[position:])
            if asked.key is ApiKey.API_VERSIONS and self._server.answers_versions:
                self.transport.write(versions_answer(asked, self._server.ranges))
                continue
            self.asked.append(asked)
            self._server.on_request(self, asked)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


OnRequest = Callable[[Session, Asked], None]


def answer_at_once(session: Session, asked: Asked) -> None:
    session.transport.write(echo(asked))


class Server:
    """Listens under a name; `on_request` decides about every request but ApiVersions."""

    def __init__(
        self,
        on_request: OnRequest = answer_at_once,
        *,
        ranges: Mapping[ApiKey, range] | None = None,
        answers_versions: bool = True,
    ) -> None:
        self.on_request = on_request
        self.answers_versions = answers_versions
        self.ranges = (
            ranges if ranges is not None else {key: api.versions for key, api in APIS.items()}
        )
        self.sessions: list[Session] = []

    @property
    def session(self) -> Session:
        return self.sessions[-1]

    async def listen(self, network: Network, host: str, port: int = PORT) -> Listener:
        return await network.listen(lambda: Session(self), host=host, port=port)
