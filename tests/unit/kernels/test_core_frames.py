"""Connections: frames cut anywhere, answers in request order, and limits that hold (I-34, I-36)."""

import random
import sys
from typing import Any, NamedTuple

import pytest

from kits.broker.core_kit import TWINS, Client, Core, Twin, batch, frame, frames_of, produce_frame
from millstream.kernels import request_headers
from millstream.kernels.errors import FrameError
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import KIB, MIB
from millstream.wire.api_keys import APIS, ApiKey

NOW = 1_700_000_000_000


def other(correlation_id: int, body: bytes = b"body") -> bytes:
    """A request that the core knows nothing about."""
    return frame(body, key=ApiKey.METADATA, version=8, correlation_id=correlation_id)


class Range(NamedTuple):
    """A part that is no bytes, as a range of a file."""

    size_bytes: int


@pytest.fixture(params=TWINS)
def core(request: pytest.FixtureRequest) -> Core:
    return Core(request.param)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_cut_anywhere_come_out_whole(core: Core, step: int) -> None:
    client = core.connect()
    data = b"".join(other(number, b"%d" % number * 5) for number in range(7))
    found = []
    for at in range(0, len(data), step):
        client.send(data[at : at + step])
        found += client.requests()
    assert found == [(number, 3, 8, number, b"tester", b"%d" % number * 5) for number in range(7)]


def test_a_null_client_id_and_header_tags(core: Core) -> None:
    client = core.connect()
    head = b"\x00\x03\x00\x09" + b"\x00\x00\x00\x05" + b"\xff\xff" + b"\x01\x63\x02zz"
    client.send((len(head) + 4).to_bytes(4, "big") + head + b"body")
    assert client.requests() == [(0, 3, 9, 5, None, b"body")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (b"\x00\x40\x00\x01", "a frame of 4194305 bytes, the limit is 4194304"),
        (b"\x00\x00\x00\x09" + bytes(9), "has no request header"),
        (b"\x00\x00\x00\x0a" + bytes(8) + b"\x00\x01", "a client id of 1 bytes"),
        (b"\x00\x00\x00\x0a" + bytes(8) + b"\xff\xfe", "a client id of -2 bytes"),
        (b"\x00\x00\x00\x0a\x00\x03\x00\x09" + bytes(4) + b"\xff\xff", "is cut off"),
        (b"\x00\x00\x00\x0d\x00\x03\x00\x09" + bytes(4) + b"\xff\xff\x01\x05\x07", "of 7 bytes"),
        (b"\x00\x00\x00\x0f\x00\x03\x00\x09" + bytes(4) + b"\xff\xff" + b"\xff" * 5, "cut off"),
    ],
)
def test_bytes_that_are_no_request_end_the_walk_for_good(
    core: Core, data: bytes, message: str
) -> None:
    client = core.connect()
    client.send(other(1) + data + other(2))
    assert client.connection.next_request(NOW)[3] == 1
    for _ in range(2):
        with pytest.raises(FrameError, match=message):
            client.connection.next_request(NOW)


def test_a_claimed_size_is_not_allocated(core: Core) -> None:
    """I-34. The buffer follows what was received: four bytes cannot cost megabytes."""
    client = core.connect()
    client.send((3 * MIB).to_bytes(4, "big") + b"x")
    assert len(client.connection.get_buffer(0)) <= 64 * KIB
    sizes = []
    while client.connection.unread_bytes < 2 * MIB:
        room = client.connection.get_buffer(0)
        sizes.append((len(room), client.connection.unread_bytes))
        size = len(room)
        del room
        client.connection.received(size)
    assert all(room <= max(64 * KIB, 2 * have) for room, have in sizes)
    assert len(sizes) < 20


def test_a_large_frame_comes_out_and_its_buffer_is_given_back(core: Core) -> None:
    client = core.connect()
    for _ in range(3):
        client.send(other(1, b"a" * MIB))
        ((*_, body),) = client.requests()
        assert body == b"a" * MIB
        assert client.requests() == []
        for _ in range(4):  # little comes now
            client.send(other(2))
            assert len(client.requests()) == 1
        assert len(client.connection.get_buffer(0)) <= 64 * KIB


def test_who_sends_little_holds_little(core: Core) -> None:
    """I-34. The large buffer of a large frame is not kept for the first bytes of another."""
    for _ in range(3):
        client = core.connect()
        client.send(other(1, b"a" * MIB) + (2 * MIB).to_bytes(4, "big") + b"x" * 5000)
        ((*_, body),) = client.requests()
        assert body == b"a" * MIB
        assert client.connection.unread_bytes == 5004
        assert len(client.connection.get_buffer(0)) <= 256 * KIB


def test_many_small_frames_at_once_come_out_whole(core: Core) -> None:
    """The buffer grows and frames lie across its end; none is lost, twice or in another order."""
    client = core.connect()
    numbers = random.Random(5)
    sent = [numbers.randbytes(numbers.choice([1, 300, 5_000, 40_000, 300_000])) for _ in range(300)]
    whole = b"".join(other(number, body) for number, body in enumerate(sent))
    found: list[bytes] = []
    at = 0
    while at < len(whole):
        room = client.connection.get_buffer(-1)
        size = min(len(room), len(whole) - at, numbers.choice([1, 4_000, 40_000, 10**6, 10**6]))
        room[:size] = whole[at : at + size]
        del room
        client.connection.received(size)
        at += size
        for number, *_, body in client.requests():
            assert number == len(found)
            found.append(body)
            client.connection.answer_nothing(number)
    assert found == sent


def test_more_than_the_buffer_has_cannot_be_received(core: Core) -> None:
    client = core.connect()
    room = client.connection.get_buffer(0)
    with pytest.raises(ValueError, match="in a buffer of"):
        client.connection.received(len(room) + 1)
    with pytest.raises(ValueError, match="in a buffer of"):
        client.connection.received(-1)


def test_bytes_that_somebody_looks_at_are_never_overwritten(core: Core) -> None:
    client, second = core.connect(), core.connect()
    client.send(other(1, b"a" * 5000))
    kept = client.connection.next_request(NOW)[5]
    for number in range(40):
        for one in (client, second):
            one.send(other(number, b"b" * 5000))
            one.requests()
    assert bytes(kept) == b"a" * 5000


# -- answers -----------------------------------------------------------------------------------


def send_requests(client: Client, count: int) -> None:
    client.send(b"".join(other(number) for number in range(count)))
    assert len(client.requests()) == count


def test_answers_leave_in_request_order(core: Core) -> None:
    """I-36."""
    client = core.connect()
    send_requests(client, 5)
    connection = client.connection
    connection.answer(2, [b"2"])
    connection.answer(1, [b"1a", b"1b"])
    assert connection.take_output() == []
    assert core.table.take_ready() == []
    connection.answer(0, [b"0"])
    assert client.collect() == b"01a1b2"
    assert core.table.take_ready() == [connection]
    assert core.table.take_ready() == []
    connection.answer_nothing(3)
    connection.answer(4, [b"4"])
    assert client.collect() == b"4"
    assert connection.in_flight == 0


def test_many_in_flight_in_any_order(core: Core) -> None:
    client = core.connect()
    sent = b""
    for turn in range(30):
        send_requests(client, 7)
        first = turn * 7
        for number in (3, 0, 6, 1, 2, 5, 4):
            client.connection.answer(first + number, [b"<%d>" % (first + number)])
            sent += client.collect()
    assert sent == b"".join(b"<%d>" % number for number in range(210))


def test_more_in_flight_than_ever_before(core: Core) -> None:
    """The oldest is in the middle of whatever they are kept in when that has to grow."""
    client = core.connect()
    send_requests(client, 6)
    for number in range(5):
        client.connection.answer(number, [b"<%d>" % number])
    send_requests(client, 40)
    for number in reversed(range(5, 46)):
        client.connection.answer(number, [b"<%d>" % number])
    assert client.collect() == b"".join(b"<%d>" % number for number in range(46))


@pytest.mark.parametrize("number", [-1, 0, 2, 5])
def test_a_second_answer_is_our_bug(core: Core, number: int) -> None:
    """I-36. 0 was sent, 2 waits for 1, 5 was never requested."""
    client = core.connect()
    send_requests(client, 3)
    client.connection.answer(0, [b"0"])
    client.connection.answer(2, [b"2"])
    with pytest.raises(InvariantViolated, match="I-36"):
        client.connection.answer(number, [b"again"])
    with pytest.raises(InvariantViolated, match="I-36"):
        client.connection.answer_nothing(number)


def test_small_parts_leave_as_one_and_others_untouched(core: Core) -> None:
    client = core.connect()
    send_requests(client, 3)
    large, file = bytearray(10_000), Range(77)
    client.connection.answer(0, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
    client.connection.answer(1, [b"g", large, b"h", b"", file])
    client.connection.answer(2, [b"i", b"j"])
    assert client.connection.output_bytes == 10_000 + 10 + 77
    output = client.connection.take_output()
    assert [bytes(one) if isinstance(one, bytearray | bytes) else one for one in output] == [
        b"abcdefg", large, b"h", file, b"ij",
    ]  # fmt: skip
    assert output[1] is large
    assert large == bytes(10_000)
    assert output[3] is file
    assert client.connection.output_bytes == 0


def test_a_closed_connection_gives_its_parts_and_ignores_the_rest(core: Core) -> None:
    client = core.connect()
    send_requests(client, 4)
    first, second = Range(1), Range(2)
    client.connection.answer(0, [first])
    client.connection.answer(2, [second])
    assert client.connection.drop_output() == [first, second]
    client.connection.answer(1, [b"1"])
    client.connection.answer(2, [b"1"])
    client.send(other(9))
    assert client.requests() == []
    assert client.connection.take_output() == client.connection.drop_output() == []
    assert client.connection.in_flight == client.connection.late_bytes == 0
    client.connection.unsent_bytes = MIB  # as of one that is muted
    assert not client.connection.is_blocked


def test_answers_that_wait_for_an_earlier_one_are_in_memory_unless_they_are_in_a_file(
    core: Core,
) -> None:
    client = core.connect()
    send_requests(client, 3)
    client.connection.answer(1, [b"four", Range(1_000)])
    client.connection.answer(2, [bytearray(5), memoryview(b"six.")])
    assert client.connection.late_bytes == 4 + 5 + 4
    client.connection.answer(0, [b"first"])
    assert client.connection.late_bytes == 0


# -- back-pressure -----------------------------------------------------------------------------


def test_no_more_requests_than_allowed_are_in_flight(core: Core) -> None:
    client = core.connect(in_flight_max=3)
    client.send(b"".join(other(number) for number in range(5)))
    assert len(client.requests()) == 3
    assert client.connection.is_blocked
    assert client.connection.unread_bytes == 2 * len(other(0))
    client.connection.answer(1, [b"1"])
    assert client.requests() == []
    client.connection.answer(0, [b"0"])
    assert not client.connection.is_blocked
    assert len(client.requests()) == 2


def test_staged_requests_count_as_in_flight(core: Core) -> None:
    client = core.connect(in_flight_max=3)
    client.send(produce_frame([(0, batch())]) * 5)
    assert client.requests() == []
    assert (client.connection.in_flight, core.table.staged) == (3, 3)
    core.write_staged()
    assert client.requests() == []
    core.write_staged()
    assert len(client.answers()) == 5


def test_too_much_output_stops_the_walk(core: Core) -> None:
    client = core.connect(output_bytes_max=100)
    client.send(b"".join(other(number) for number in range(3)))
    assert client.connection.next_request(NOW) is not None
    client.connection.answer(0, [bytes(60)])
    assert client.connection.next_request(NOW) is not None
    client.connection.unsent_bytes = 40
    assert client.connection.is_blocked
    assert client.connection.next_request(NOW) is None
    client.connection.unsent_bytes = 39
    assert client.connection.next_request(NOW) is not None


def test_answers_behind_one_that_is_not_ready_are_output_too(core: Core) -> None:
    """Else one request that waits would let a client pile up answers behind it."""
    client = core.connect(output_bytes_max=100)
    client.send(b"".join(other(number) for number in range(4)))
    for _ in range(3):
        assert client.connection.next_request(NOW) is not None
    client.connection.answer(1, [bytes(50)])
    assert not client.connection.is_blocked
    client.connection.answer(2, [bytes(20), bytes(30)])
    assert client.connection.is_blocked
    assert client.connection.next_request(NOW) is None
    client.connection.answer(0, [b""])
    assert client.connection.is_blocked  # sent, but not taken
    assert len(client.collect()) == 100
    assert client.connection.next_request(NOW) is not None


def test_answers_between_python_and_the_core_keep_their_order(core: Core) -> None:
    """I-36. A staged answer waits for the slow request before it, and the other way round."""
    client = core.connect()
    client.send(other(0) + produce_frame([(0, batch())], correlation_id=1) + other(2))
    client.send(produce_frame([(0, batch())], correlation_id=3))
    assert [one[0] for one in client.requests()] == [0, 2]
    core.write_staged()
    assert client.collect() == b""
    client.connection.answer(2, [b"\0\0\0\4\0\0\0\2"])
    client.connection.answer(0, [b"\0\0\0\4\0\0\0\0"])
    assert [int.from_bytes(one[:4], "big") for one in frames_of(client.collect())] == [0, 1, 2, 3]


def test_header_table_says_what_the_catalogue_says() -> None:
    for key, api in APIS.items():
        table = request_headers.FLEXIBLE_FROM
        ours: Any = table[key] if key < len(table) else 0
        theirs = api.flexible_from
        assert ours == (request_headers.NEVER if theirs is None else theirs), key


@pytest.mark.parametrize("kernel", TWINS)
def test_unknown_keys_have_their_header_read(kernel: Twin) -> None:
    client = Core(kernel, partitions=0).connect()
    head = (500).to_bytes(2, "big") + b"\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"\0"
    client.send((len(head)).to_bytes(4, "big") + head)
    head = b"\xff\xff\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"x"
    client.send((len(head)).to_bytes(4, "big") + head)
    assert client.requests() == [(0, 500, 0, 1, None, b""), (1, -1, 0, 1, None, b"x")]


def test_a_large_request_that_trickles_is_not_copied_for_every_byte(core: Core) -> None:
    """A client that sends the rest of it byte by byte must not cost the others anything."""
    client = core.connect(frame_bytes_max=100 * MIB)
    client.send((100 * MIB).to_bytes(4, "big") + bytes(20 * MIB))
    sizes = set()
    for _ in range(200):
        room = client.connection.get_buffer(-1)
        sizes.add(len(room) + client.connection.unread_bytes)
        del room
        client.connection.received(1)
    assert len(sizes) <= 2, "every other size is a copy of all that came"


@pytest.mark.parametrize("received_bytes", [300 * KIB, 5 * MIB, 20 * MIB, 70 * MIB])
def test_a_buffer_takes_what_was_received_and_at_most_a_spare_more(
    core: Core, received_bytes: int
) -> None:
    """I-37: what is counted for unfinished requests grows as they do, not by doubling."""
    client = core.connect(frame_bytes_max=100 * MIB)
    client.send((100 * MIB).to_bytes(4, "big") + bytes(received_bytes))
    connection = client.connection
    assert received_bytes < connection.resident_bytes <= connection.buffer_bytes
    if "_compiled" in core.twin.slots.__name__:  # the plain one copies into its buffers as a whole
        assert connection.resident_bytes <= max(16 * MIB, received_bytes + KIB)


def test_large_buffers_are_returned_when_their_bodies_are_no_longer_in_use(core: Core) -> None:
    """I-37: clients that send one large request, and nothing more, hold no memory."""
    clients = [core.connect() for _ in range(20)]
    bodies = []
    for client in clients:
        client.send(other(1, bytes(3 * MIB)))
        request = client.connection.next_request(NOW)
        assert request is not None
        bodies.append(request[-1])
    del request
    buffers = [body.obj for body in bodies]
    for client in clients:
        client.connection.trim()  # not now: there are views of them
    assert all(bytes(body[:2]) == bytes(2) for body in bodies)
    bodies.clear()
    for client in clients:
        client.connection.trim()
    in_use = sum(sys.getrefcount(buffers[index]) > 2 for index in range(len(buffers)))
    assert in_use <= 6  # as spares, for the next large request of anybody
    clients[0].send(other(2))
    assert [one[3] for one in clients[0].requests()] == [2]
