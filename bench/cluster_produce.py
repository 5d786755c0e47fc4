"""PF2: produce with a C client and acks=all to three brokers that all have every record."""

from itertools import product

from bench.broker_cells import QUICK, compare, cost_row, speed_row
from bench.broker_produce import Shape, produce_load
from bench.cluster_systems import BROKERS, Clusters
from bench.measure import Row

RUN_BYTES = {100: 100_000_000, 1_000: 200_000_000}
RUN_BYTES_QUICK = {100: 50_000_000, 1_000: 100_000_000}
BATCHES = ("16 KB", "128 KB", "1 MB")
SPEED_AT_LEAST = 2.5
COST_AT_MOST = 0.4


def shapes() -> list[Shape]:
    if QUICK:
        return [Shape(100, "128 KB", 6), Shape(1_000, "128 KB", 1)]
    return [Shape(*cell) for cell in product(RUN_BYTES, BATCHES, (1, 6))]


def measure(clusters: Clusters) -> list[Row]:
    rows: list[Row] = []
    for shape in shapes():
        size = (RUN_BYTES_QUICK if QUICK else RUN_BYTES)[shape.record_bytes]
        load = produce_load(shape, run_bytes=size, copies=BROKERS, acks="all")
        found = compare(load, clusters.systems)
        identity, name = f"cluster.produce.{shape.identity}", f"PF2 produce {shape.name}, acks=all"
        what = f"{name}, records/s"
        rows.append(speed_row(f"{identity}.speed", what, found, at_least=SPEED_AT_LEAST))
        what = f"{name}, CPU s/GB of all brokers"
        rows.append(cost_row(f"{identity}.cpu", what, found, at_most=COST_AT_MOST))
    return rows
