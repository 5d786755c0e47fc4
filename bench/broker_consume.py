"""PF3: consume with a C client what is in the page cache, from the first record to the last."""

from itertools import product

from bench.broker_cells import QUICK, Done, Load, compare, cost_row, speed_row
from bench.broker_generators import run
from bench.broker_produce import Shape, produce
from bench.broker_systems import System, Systems
from bench.broker_wire import Topic, create_topic, delete_topics
from bench.measure import Row

FILLED_BYTES = {100: 400_000_000, 1_000: 800_000_000}
FILLED_BYTES_QUICK = {100: 200_000_000, 1_000: 500_000_000}
FILL_BATCH = "128 KB"
SPEED_AT_LEAST = 1.0
COST_AT_MOST = 1.0


def measure(systems: Systems) -> list[Row]:
    rows: list[Row] = []
    for record_bytes, partitions in product(FILLED_BYTES, (1, 6)):
        shape = Shape(record_bytes, FILL_BATCH, partitions)
        topics = {system.name: filled_topic(system, shape) for system in systems}
        found = compare(consume_load(topics, shape), systems)
        for system in systems:
            delete_topics(system.address, [topics[system.name]])
        identity = f"broker.consume.{record_bytes}.{partitions}"
        name = shape.name.replace(f", {FILL_BATCH}", "")
        what = f"PF3 consume {name}, records/s"
        rows.append(speed_row(f"{identity}.speed", what, found, at_least=SPEED_AT_LEAST))
        what = f"PF3 consume {name}, CPU s/GB"
        rows.append(cost_row(f"{identity}.cpu", what, found, at_most=COST_AT_MOST))
    return rows


def record_count(shape: Shape) -> int:
    return (FILLED_BYTES_QUICK if QUICK else FILLED_BYTES)[shape.record_bytes] // shape.record_bytes


def filled_topic(system: System, shape: Shape) -> Topic:
    topic = create_topic(system.address, shape.partitions)
    produce(system, topic, shape, record_count(shape))
    return topic


def consume_load(topics: dict[str, Topic], shape: Shape) -> Load:
    return Load(
        lambda system: topics[system.name],
        lambda system, topic: consume(system, topic, record_count(shape)),
        lambda _system, _topic: None,
    )


def consume(system: System, topic: Topic, count: int) -> Done:
    figures = run("consume", system.address, topic.name, topic.partitions, count)
    return Done(figures["records"], figures["seconds"], figures["bytes"] / 1e9)
