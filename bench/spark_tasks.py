"""PF9, growth: how throughput grows with the number of partitions (and tasks) and of cores."""

from itertools import product

from bench.broker_cells import QUICK
from bench.measure import Row, fact, spread
from bench.spark_cells import Bench, Found, Job, compare, rows_of, verify
from bench.spark_data import Topic
from bench.spark_drivers import DEFAULT_MASTER
from bench.spark_read import Shape, Topics, reading

MASTERS = ("local[1]", "local[2]")
PARTITIONS = (1, 2, 4)
VALUE_BYTES = 100


def measure(bench: Bench, topics: Topics) -> list[Row]:
    rows: list[Row] = []
    single: Found | None = None
    for master, partitions in product(MASTERS, (1, 4) if QUICK else PARTITIONS):
        if partitions == 1:
            _begin(bench, master)
        shape = Shape(VALUE_BYTES, "none", partitions)
        topic = topics.at(bench.broker.address, shape)
        what = f"PF9 read {shape.name}, {partitions} tasks, {master}"
        found = _compare(bench, topics, topic, what)
        rows += rows_of(f"spark.tasks.{master}.{partitions}", what, found, at_least=None)
        single = single or found
    if single is not None:
        rows += _growth(single, found)
    _begin(bench, DEFAULT_MASTER)
    return rows


def _begin(bench: Bench, master: str) -> None:
    for driver in bench.drivers:
        driver.run_job("session", master=master)


def _compare(bench: Bench, topics: Topics, topic: Topic, what: str) -> Found:
    check = topics.data(VALUE_BYTES).check(topic.rows)
    verify(what, reading("check_read", bench, topic, "noop"), check, bench.drivers)
    job = reading("read", bench, topic, "noop")
    return compare(what, Job(lambda driver, _: job(driver), topic.rows), bench)


def _growth(single: Found, most: Found) -> list[Row]:
    """For each connector: most tasks on most cores against one task on one core."""
    rows = []
    for name, one, many in (("ours", single.ours, most.ours), ("peer", single.peer, most.peer)):
        grown = (
            spread([run.speed for run in many]).median / spread([run.speed for run in one]).median
        )
        what = f"PF9 growth from 1 task on 1 core to {PARTITIONS[-1]} on 2, {name}"
        rows.append(fact(f"spark.tasks.growth.{name}", what, grown))
    return rows
