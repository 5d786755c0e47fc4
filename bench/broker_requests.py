"""PF13: one-record requests with acks=all, over raw sockets, connections x requests in flight."""

from bench.broker_cells import QUICK, Done, Load, compare, cost_row, speed_row
from bench.broker_generators import run
from bench.broker_systems import System, Systems
from bench.broker_wire import (
    Topic,
    create_topic,
    delete_topics,
    error_position,
    leader_address,
    produce_frame,
)
from bench.measure import Row

CELLS = [(1, 1), (1, 5), (10, 1), (10, 5), (50, 1), (50, 5)]
CELLS_QUICK = [(1, 1), (10, 1), (50, 5)]
SECONDS = 1.5 if QUICK else 3.0
SPEED_AT_LEAST = 2.0
COST_AT_MOST = 0.3


def measure(systems: Systems) -> list[Row]:
    rows: list[Row] = []
    for connections, in_flight in CELLS_QUICK if QUICK else CELLS:
        found = compare(requests_load(connections, in_flight), systems)
        name = f"{connections} x {in_flight}"
        identity = f"broker.requests.{connections}x{in_flight}"
        what = f"PF13 one-record requests {name}, requests/s"
        rows.append(speed_row(f"{identity}.speed", what, found, at_least=SPEED_AT_LEAST))
        what = f"PF13 one-record requests {name}, CPU us/request"
        rows.append(cost_row(f"{identity}.cpu", what, found, at_most=COST_AT_MOST))
    return rows


def requests_load(
    connections: int, in_flight: int, *, partitions: int = 1, seconds: float = SECONDS
) -> Load:
    """Every request goes to the next partition; each run has a topic of its own.

    All requests go to one broker: in a cluster a topic must have one partition.
    """
    return Load(
        lambda system: create_topic(system.address, partitions),
        lambda system, topic: send(
            system, topic, connections=connections, in_flight=in_flight, seconds=seconds
        ),
        lambda system, topic: delete_topics(system.address, [topic]),
    )


def send(system: System, topic: Topic, *, connections: int, in_flight: int, seconds: float) -> Done:
    frames = b"".join(produce_frame(topic, index) for index in range(topic.partitions))
    host, _, port = (leader_address(system.address, topic, 0) or "").rpartition(":")
    figures = run(
        "requests", host, port, connections, in_flight, seconds, error_position(), stdin=frames
    )
    return Done(figures["requests"], figures["seconds"], figures["requests"] / 1e6)
