"""The request parsers, each with the inputs it gets and what must hold for every one of them."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from unittest import mock

from crc32c import crc32c

from millstream.broker.fetch import request as fetch_request
from millstream.broker.requests.registry import SERVED, load
from millstream.coordination.keeper.jute import JuteReader, MalformedRequest
from millstream.coordination.keeper.protocol import Op
from millstream.coordination.keeper.requests import read_connect, read_header, read_request
from millstream.kernels.compression import Codec
from millstream.kernels.errors import MalformedRecords
from millstream.observe.http_request import BadRequest, take_request
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.fuzz.cores import NOW_MS, TOPIC, TOPIC_ID, FuzzedCore, core_twins, twins_of
from millstream.testing.fuzz.generate import Filler, Form
from millstream.testing.fuzz.mutate import mutate, mutate_bytes
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.api_keys import OWN_KEYS, ApiKey
from millstream.wire.catalogue import all_keys, request_type, versions_of
from millstream.wire.fields import NO_UUID
from millstream.wire.headers import decode_request_header
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from millstream.wire.primitives import MalformedFrame

INPUTS_PER_SEED: Final = 20
_SIZE_MAX: Final = 1 << 20
_HEADER_BYTES: Final = 61
_KEYS: Final = (*all_keys(), *sorted(OWN_KEYS))


class FuzzFailed(Exception):
    """Twins that differ, or an error that no parser declares."""


class Input(NamedTuple):
    """What a parser is given, made before its time and memory are measured."""

    name: str
    data: bytes
    check: Callable[[bytes], str]
    """Parses it and returns the outcome's class; raises whatever it should not have."""
    form: Form | None = None


def inputs_of(seed: int) -> list[Input]:
    """All inputs of one seed, of one parser."""
    chance = SeededRandomness(f"fuzz {seed}")
    make = chance.choice(_MAKERS)
    return make(chance)


# -- generic codecs and headers ----------------------------------------------------------------


def _request_inputs(chance: SeededRandomness) -> list[Input]:
    key = chance.choice(_KEYS)
    form = Form(key, chance.choice(versions_of(key)))
    filler = Filler(chance, form)
    inputs = []
    for _ in range(INPUTS_PER_SEED):
        body = filler.request().encode(form.version)
        # Mostly behind the header: damaged there, a request gets no further.
        frame = filler.frame_of(mutate_bytes(body, chance) if chance.chance(0.7) else body)
        frame = mutate(frame, chance) if chance.chance(0.15) else frame
        inputs.append(Input("request", frame[4:], _check_request, form))
    return inputs


def _check_request(data: bytes) -> str:
    """The header, then the body as that header says; what was taken can be written and read."""
    try:
        header, begin = decode_request_header(data)
    except MalformedFrame:
        return "header refused"
    if header.api_version not in versions_of(header.api_key):
        return "version refused"
    message, version = request_type(header.api_key), header.api_version
    body = memoryview(data)[begin:]
    served = SERVED.get(header.api_key)
    if served is not None and version in served.versions:
        with suppress(MalformedFrame):
            load(header.api_key).decode(body, version)
    try:
        decoded = message.decode(body, version)
    except MalformedFrame:
        return "body refused"
    # Bytes are compared, because not-a-number differs from itself.
    written = decoded.encode(version)
    if message.decode(written, version).encode(version) != written:
        raise FuzzFailed(f"{message.__name__} v{version} reads back as another")
    return "decoded"


# -- Fetch's own decoder -----------------------------------------------------------------------


def _fetch_inputs(chance: SeededRandomness) -> list[Input]:
    version = chance.choice(SERVED[ApiKey.FETCH].versions)
    filler = Filler(chance, Form(ApiKey.FETCH, version))
    bodies = []
    for _ in range(INPUTS_PER_SEED):
        body = filler.request().encode(version)
        bodies.append(body if chance.chance(0.2) else mutate_bytes(body, chance))
    return [Input("fetch", one, partial(_check_fetch, version)) for one in bodies]


def _check_fetch(version: int, data: bytes) -> str:
    found = [_fetch_outcome(one.parse, data, version) for one in twins_of("fetch")]
    if len(set(map(repr, found))) != 1:
        raise FuzzFailed(f"Fetch v{version} is {found[0]!r} compiled, {found[-1]!r} plain")
    return "refused" if found[0] is None else "decoded"


def _fetch_outcome(parse: Any, data: bytes, version: int) -> Any:
    """None for a refused one."""
    with mock.patch.object(fetch_request, "parse", parse):
        try:
            return fetch_request.decode(memoryview(data), version)
        except MalformedFrame:
            return None


# -- the connection core -----------------------------------------------------------------------


def _stream_inputs(chance: SeededRandomness) -> list[Input]:
    """Whole connections: produce requests for a topic that is there, and others between them."""
    made = []
    for _ in range(3):
        frames = []
        for _ in range(chance.integer(1, 12)):
            frame = _produce_frame(chance) if chance.chance(0.7) else _any_frame(chance)
            frames.append(frame if chance.chance(0.6) else mutate(frame, chance))
        cut = chance.integer(1, 400) if chance.chance(0.3) else _SIZE_MAX
        made.append(Input("connection", b"".join(frames), partial(_check_stream, cut)))
    return made


def _produce_frame(chance: SeededRandomness) -> bytes:
    version = chance.choice(SERVED[ApiKey.PRODUCE].versions)
    data = [
        PartitionProduceData(index=index, records=_batch(chance))
        for index in chance.choice([[0], [1], [0, 1], [1, 0], [0, 0], [9], []])
    ]
    is_by_id = version >= 13
    topic = TopicProduceData(
        name="" if is_by_id else TOPIC,
        topic_id=TOPIC_ID if is_by_id else NO_UUID,
        partition_data=data,
    )
    acks = chance.choice([1, -1, 0, 0, 3])
    request = ProduceRequest(acks=acks, timeout_ms=1_500, topic_data=[topic])
    body = request.encode(version)
    return Filler(chance, Form(ApiKey.PRODUCE, version)).frame_of(body)


def _any_frame(chance: SeededRandomness) -> bytes:
    key = chance.choice(_KEYS)
    return Filler(chance, Form(key, chance.choice(versions_of(key)))).frame()


def _check_stream(cut: int, data: bytes) -> str:
    outcomes = []
    for kernels in core_twins():
        core = FuzzedCore(kernels)
        for at in range(0, len(data), cut):
            core.receive(data[at : at + cut])
        outcomes.append((core.seen, core.facts(), core.is_closed))
        core.close()
    if any(one != outcomes[0] for one in outcomes):
        raise FuzzFailed(f"connections differ: {outcomes[0]} compiled, {outcomes[-1]} plain")
    return "closed" if outcomes[0][2] else "served"


# -- batches and records -----------------------------------------------------------------------


def _batch(chance: SeededRandomness) -> bytes:
    """Of records that are right, but for one byte now and then; the CRC is right then too."""
    spec = BatchSpec(timestamp_ms=NOW_MS + chance.choice([0, 5, -1_000, 10**9]))
    if chance.chance(0.2):
        spec = spec._replace(codec=chance.choice([Codec.GZIP, Codec.LZ4, Codec.ZSTD]))
    if chance.chance(0.3):
        spec = spec._replace(producer_id=7, producer_epoch=0, base_sequence=chance.integer(0, 3))
    pairs = [
        (chance.choice([None, b"key"]), bytes(chance.choice([0, 10, 300, 2_500])))
        for _ in range(chance.choice([1, 1, 2, 5]))
    ]
    headers = [("h", b"x")] if chance.chance(0.2) else []
    batch = build_batch(pairs, spec, headers=headers)
    if chance.chance(0.3):
        damaged = bytearray(mutate_bytes(bytes(batch), chance))
        if len(damaged) > _HEADER_BYTES and chance.chance(0.7):
            damaged[8:12] = (len(damaged) - 12).to_bytes(4, "big")
            damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
        return bytes(damaged)
    return bytes(batch)


def _batch_inputs(chance: SeededRandomness) -> list[Input]:
    inputs = []
    for _ in range(INPUTS_PER_SEED):
        data = b"".join(_batch(chance) for _ in range(chance.integer(1, 4)))
        data = data if chance.chance(0.5) else mutate_bytes(data, chance)
        inputs.append(Input("batches", data, _check_batches))
    return inputs


def _check_batches(data: bytes) -> str:
    walks = [
        one.walk(data, 0, len(data), check_crc=False, size_max=_SIZE_MAX)
        for one in twins_of("batches")
    ]
    if any(one != walks[0] for one in walks):
        raise FuzzFailed(f"walks differ: {walks}")
    payload = data[_HEADER_BYTES:]
    for count in (1, 2):
        found = [_records(one, payload, count) for one in twins_of("records")]
        if any(one != found[0] for one in found):
            raise FuzzFailed(f"records differ: {found}")
    return f"reason {walks[0][2]}"


def _records(kernel: Any, payload: bytes, count: int) -> list[object]:
    size = len(payload)
    found: list[object] = [
        kernel.inspect(payload, 0, size, count, contiguous=one) for one in (True, False)
    ]
    calls: list[Callable[[], object]] = [
        partial(kernel.locate, payload, 0, size, count),
        partial(kernel.seek, payload, 0, size, count, offset_min=0, time_min=0),
    ]
    for call in calls:
        try:
            found.append(call())
        except MalformedRecords as error:
            found.append((error.reason, error.position))
    return found


# -- the coordination service and HTTP ---------------------------------------------------------


def _keeper_inputs(chance: SeededRandomness) -> list[Input]:
    inputs = []
    for _ in range(INPUTS_PER_SEED):
        op = chance.choice(list(Op))
        parts = [
            chance.choice(
                [
                    b"\0\0\0\4/abc",
                    b"\0\0\0\1",
                    b"\xff\xff\xff\xff",
                    b"\0\0\0\x1f\0\0\0\5world\0\0\0\6anyone",
                    b"\1",
                    chance.bytes(8),
                ]
            )
            for _ in range(chance.integer(0, 8))
        ]
        body = mutate_bytes(b"".join(parts), chance) if chance.chance(0.5) else b"".join(parts)
        header = chance.bytes(4) + int(op).to_bytes(4, "big", signed=True)
        inputs.append(Input("keeper", header + body, _check_keeper))
    return inputs


def _check_keeper(data: bytes) -> str:
    with suppress(MalformedRequest):
        read_connect(data)
    try:
        reader = JuteReader(data)
        op = Op(read_header(reader).op)
        read_request(op, reader)
    except MalformedRequest:
        return "refused"
    return "decoded"


_HTTP: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: text/plain;q=0.5, */*;q=0.1\r\n\r\n",
    b"GET http://a:1/health?x=1#y HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
)


def _http_inputs(chance: SeededRandomness) -> list[Input]:
    texts = [chance.choice(_HTTP) * chance.integer(1, 4) for _ in range(INPUTS_PER_SEED)]
    return [Input("HTTP", mutate_bytes(one, chance), _check_http) for one in texts]


def _check_http(data: bytes) -> str:
    buffer = bytearray(data)
    try:
        while take_request(buffer) is not None:
            pass
    except BadRequest:
        return "refused"
    return "decoded"


_MAKERS: Final = (
    *(_request_inputs,) * 6,
    *(_fetch_inputs,) * 3,
    *(_stream_inputs,) * 4,
    *(_batch_inputs,) * 2,
    _keeper_inputs,
    _http_inputs,
)
"""Each as often as it stands here."""
