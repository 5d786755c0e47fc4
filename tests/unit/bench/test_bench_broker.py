"""The broker's benchmark: its judgement, its frames and its generators; not its figures."""

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bench import broker, broker_cells
from bench.broker_cells import (
    Comparison,
    Done,
    Load,
    compare,
    cost_row,
    goal,
    lower_is_better,
    sample,
    speed_row,
)
from bench.broker_generators import build, run
from bench.broker_produce import SPEED_AT_LEAST, shapes
from bench.broker_report import markdown
from bench.broker_systems import System, Systems, cpu_seconds
from bench.broker_wire import Topic, create_topic, error_position, produce_answer, produce_frame
from bench.measure import Spread, fact

from millstream.testing import BrokerThread
from millstream.testing.peers.runtimes import MissingRuntimeError, missing_is_skipped

TOPIC = Topic("t", uuid.UUID(int=7), 2)


class Pretended:
    """A system without a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1:1"
        self.process_ids = (0,)

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize(
    ("ratio", "limits", "is_met"),
    [
        (1.8, {"at_least": 1.8}, True),
        (1.7999, {"at_least": 1.8}, False),
        (0.5, {"at_most": 0.5}, True),
        (0.5001, {"at_most": 0.5}, False),
        (3.0, {}, None),
    ],
)
def test_goal_is_met_at_its_limit_and_not_beyond(
    ratio: float, limits: dict[str, float], is_met: bool | None
) -> None:
    judged = goal(ratio, **limits)
    assert judged["met"] is is_met
    assert judged["goal_is_most"] is ("at_most" in limits)


def comparison(*, others_cores: float = 0.0) -> Comparison:
    return Comparison(
        ours_speed=Spread(200.0, 190.0, 210.0),
        peer_speed=Spread(100.0, 90.0, 195.0),
        ours_cost=Spread(1.0, 0.9, 1.1),
        peer_cost=Spread(4.0, 3.9, 4.1),
        others_cores=others_cores,
    )


def test_rows_tell_ratio_range_and_whether_a_difference_can_be_claimed() -> None:
    speed = speed_row("a", "a", comparison(), at_least=1.5)
    cost = cost_row("b", "b", comparison(), at_most=0.2)
    assert (speed["ratio"], speed["met"], speed["ranges_overlap"]) == (2.0, True, True)
    assert (cost["ratio"], cost["met"], cost["ranges_overlap"]) == (0.25, False, False)
    assert cost["ours_range"] == [0.9, 1.1]


def test_a_disturbed_cell_is_marked() -> None:
    assert speed_row("a", "a", comparison(others_cores=0.11), at_least=1.0)["disturbed"]
    assert not speed_row("a", "a", comparison(others_cores=0.1), at_least=1.0)["disturbed"]


def test_figures_without_a_generator_are_compared_by_their_medians() -> None:
    row = lower_is_better("a", "start, s", [0.3, 0.5, 0.4], [4.0, 3.0, 5.0], at_most=0.1)
    assert (row["ours"], row["peer"], row["ratio"], row["met"]) == (0.4, 4.0, 0.1, True)


def test_the_report_shows_ranges_goals_and_marks() -> None:
    rows = [
        speed_row("a", "speed", comparison(others_cores=0.5), at_least=1.5),
        cost_row("b", "cost", comparison(), at_most=0.2),
        fact("c", "alone", 1.5),
    ]
    lines = markdown(rows).splitlines()[2:]
    assert lines == [
        "| speed | 200 (190-210) | 100 (90-195) | 2.00 | >= 1.5 | met ~ ! |",
        "| cost | 1 (0.9-1.1) | 4 (3.9-4.1) | 0.25 | <= 0.2 | **missed** |",
        "| alone | 1.5 |  |  |  |  |",
    ]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What `sample` reads of the machine; others take `others` seconds for each reading."""
    state = {"others": 0.0, "seen": 0.0}

    def others(_running: object) -> float:
        state["seen"] += state["others"]
        return state["seen"]

    monkeypatch.setattr(broker_cells, "others_seconds", others)
    monkeypatch.setattr(broker_cells, "cpu_seconds", lambda _process_ids: 0.0)
    return state


def counting_load(ran: list[str]) -> Load:
    def do(system: System, _prepared: object) -> Done:
        ran.append(system.name)
        return Done(units=10, seconds=2, amount=1)

    return Load(lambda _system: None, do, lambda _system, _prepared: None)


def test_runs_alternate_after_one_warm_up_of_each(machine: dict[str, float]) -> None:
    ran: list[str] = []
    found = compare(counting_load(ran), Systems(Pretended("A"), Pretended("B")), runs=4)
    assert "".join(ran) == "AB" + "ABBAABBA"
    assert found.ours_speed == Spread(5.0, 5.0, 5.0)


def test_a_cell_is_repeated_while_others_are_busy_and_then_given_up(
    machine: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_cells, "ATTEMPTS_HERE", 3)
    machine["others"] = 1000.0
    ran: list[str] = []
    found = compare(counting_load(ran), Systems(Pretended("A"), Pretended("B")), runs=1)
    assert len(ran) == 3 * 4
    assert speed_row("a", "a", found, at_least=1.0)["disturbed"]


def test_what_was_prepared_is_cleaned_when_the_load_fails(machine: dict[str, float]) -> None:
    cleaned: list[object] = []

    def fail(_system: System, _prepared: object) -> Done:
        raise RuntimeError("the generator ended")

    load = Load(lambda _system: "topic", fail, lambda _system, prepared: cleaned.append(prepared))
    with pytest.raises(RuntimeError, match="the generator ended"):
        sample(load, Pretended("A"), ())
    assert cleaned == ["topic"]


def test_cpu_of_a_process_is_its_own_clock() -> None:
    before = time.process_time()
    seen = cpu_seconds([os.getpid()])
    assert before <= seen <= time.process_time()


def test_the_matrix_has_every_cell_of_the_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.broker_produce.QUICK", False)
    every = shapes()
    assert len({shape.identity for shape in every}) == len(every) == 2 * 2 * 3 * 2
    assert {shape.batch for shape in every} == set(SPEED_AT_LEAST)
    assert list(broker.GROUPS)[-2:] == ["start", "scale"]


# -- generators --------------------------------------------------------------------------------


def test_without_library_or_permission_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.broker_generators.missing", lambda: "librdkafka")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingRuntimeError, match=r"apt-get install .*librdkafka-dev"):
        build(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with missing_is_skipped():
        return build(tmp_path_factory.mktemp("generators"))


def test_generators_build_without_a_warning_and_name_their_arguments(built: Path) -> None:
    sources = {source.stem for source in Path(broker.__file__).parent.glob("generators/*.c")}
    assert sources == {program.name for program in built.iterdir()}
    for program in built.iterdir():
        told = subprocess.run([program], capture_output=True, text=True, check=False)
        assert told.returncode == 2
        assert told.stderr.startswith(f"usage: {program.name} ")


def test_requests_go_through_the_frames_in_turn(built: Path) -> None:
    frames = [produce_frame(TOPIC, index) for index in range(TOPIC.partitions)]
    with answering(error_code=0) as (port, seen):
        figures = requests(built, port, b"".join(frames))
    assert figures["requests"] == len(seen) >= 2
    assert [without_correlation_id(frame) for frame in seen[:2]] == [
        without_correlation_id(frame) for frame in frames
    ]


def test_an_error_code_in_an_answer_ends_the_generator(built: Path) -> None:
    with (
        answering(error_code=3) as (port, _seen),
        pytest.raises(RuntimeError, match="an error code in an answer"),
    ):
        requests(built, port, produce_frame(TOPIC))


def test_generators_and_a_broker_agree_on_what_was_produced(built: Path) -> None:
    count = 2_000
    with BrokerThread() as broker_thread:
        address = broker_thread.bootstrap_servers
        topic = create_topic(address, 2)
        produced = run("produce", address, topic.name, 2, count, 100, 16_384, directory=built)
        # One record more in each partition: how `create_topic` knew that it is served.
        consumed = run("consume", address, topic.name, 2, count + 2, directory=built)
        delay = run("latency", address, topic.name, 500, 100, 0.2, 0.1, directory=built)
    assert produced["records"] == count
    assert produced["bytes"] == count * 100
    assert consumed["records"] == count + 2
    assert delay["records"] == 100
    assert 0 < delay["p50_us"] <= delay["p99_us"]


def requests(built: Path, port: int, frames: bytes) -> dict[str, Any]:
    arguments = ("127.0.0.1", port, 1, 2, 0.05, error_position())
    return run("requests", *arguments, stdin=frames, directory=built)


def without_correlation_id(frame: bytes) -> bytes:
    return frame[:8] + frame[12:]


@contextmanager
def answering(*, error_code: int) -> Iterator[tuple[int, list[bytes]]]:
    """A server of one connection that answers every produce request alike; port and requests."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(_answer_all, server, error_code, seen)
        yield server.getsockname()[1], seen
        served.result()


def _answer_all(server: socket.socket, error_code: int, seen: list[bytes]) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rwb") as stream, suppress(ConnectionError):
        while size := stream.read(4):
            frame = size + stream.read(int.from_bytes(size, "big"))
            seen.append(frame)
            answer = frame[8:12] + produce_answer(error_code)[4:]
            stream.write(len(answer).to_bytes(4, "big") + answer)
            stream.flush()
