"""The cost of one record on three brokers: requests one by one, and end to end.

No goal is set for these; the ones for one broker (PF13, PF4) stand beside it as a measure.
"""

from bench import broker_latency
from bench.broker_cells import QUICK, compare, cost_row, speed_row
from bench.broker_requests import requests_load
from bench.cluster_systems import Clusters
from bench.measure import Row

CELLS = [(1, 1), (1, 5), (10, 1), (50, 5)]
CELLS_QUICK = [(1, 1), (10, 1)]


def measure(clusters: Clusters) -> list[Row]:
    rows: list[Row] = []
    for connections, in_flight in CELLS_QUICK if QUICK else CELLS:
        found = compare(requests_load(connections, in_flight), clusters.systems)
        name = f"one-record requests to 3 brokers {connections} x {in_flight}"
        identity = f"cluster.requests.{connections}x{in_flight}"
        rows.append(speed_row(f"{identity}.speed", f"{name}, requests/s", found, at_least=None))
        what = f"{name}, CPU us/request of all brokers"
        rows.append(cost_row(f"{identity}.cpu", what, found, at_most=None))
    return rows


def measure_latency(clusters: Clusters) -> list[Row]:
    return broker_latency.measure(
        clusters.systems, group="cluster.latency", name="end to end over 3 brokers", at_most={}
    )
