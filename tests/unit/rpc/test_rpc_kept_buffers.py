"""Buffers of large answers are used again, and never under the eyes of who holds a view."""

import random
from typing import Any

from millstream.rpc.pipeline import KEPT_BYTES_MAX, Pipeline
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import encode_response_header

LIST_OFFSETS_V1 = (ApiKey.LIST_OFFSETS, 1)


def pipeline() -> Pipeline[Any]:
    return Pipeline(client_id="me", response_bytes_max=100_000_000)


def exchange(pipe: Pipeline[Any], number: int, body: bytes, step: int = 1 << 30) -> memoryview:
    """One request and its answer, whose bytes come in steps; the view that its owner gets."""
    pipe.begin(*LIST_OFFSETS_V1, [b""], deadline_s=1.0, owner=None)
    header = encode_response_header(*LIST_OFFSETS_V1, number)
    data = (len(header) + len(body)).to_bytes(4) + header + body
    while data:
        room = pipe.writable()
        size = min(len(room), len(data), step)
        room[:size] = data[:size]
        pipe.received(size)
        data = data[size:]
    found = pipe.next_response()
    assert found is not None
    return found.body


def place_of(view: memoryview) -> int:
    return id(view.obj)


def test_a_view_that_is_held_is_never_written_again() -> None:
    """Answers of all sizes; some are held for long, some dropped at once, some in part."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pipe = pipeline()
    held: list[tuple[memoryview, bytes]] = []
    for number in range(300):
        body = rng.randbytes(rng.choice((10, 5000, 65_000, 70_000, 300_000, 1_048_000)))
        view = exchange(pipe, number, body, rng.choice((1 << 30, 30_000)))
        start = rng.randrange(len(body))
        held.append((view[start:], body[start:]))
        if rng.random() < 0.6:
            held.pop(rng.randrange(len(held)))
        if rng.random() < 0.05:
            pipe.trim()
        for part, expected in rng.sample(held, min(3, len(held))):
            assert part == expected
    assert all(part == expected for part, expected in held)


def test_a_buffer_is_used_again_when_its_views_are_gone() -> None:
    pipe = pipeline()
    places = set()
    for number in range(50):
        view = exchange(pipe, number, bytes(1_000_000 + 100 * number))
        places.add(place_of(view))
        del view
    assert len(places) <= 3
    first = exchange(pipe, 50, bytes(1_000_000))
    second = exchange(pipe, 51, bytes(1_000_000))
    assert place_of(first) != place_of(second)


def test_what_is_kept_is_bounded_and_given_back() -> None:
    pipe = pipeline()
    views = [exchange(pipe, number, bytes(3_000_000)) for number in range(30)]
    assert sum(len(one) for one in pipe._kept) <= KEPT_BYTES_MAX
    assert len(views) == 30
    pipe.trim()
    assert not pipe._kept
    assert exchange(pipe, 30, b"x" * 100_000) == b"x" * 100_000
