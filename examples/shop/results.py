"""What the pipeline left: read back with our client and with pyarrow, without Spark."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from examples.shop.expected import WINDOW_S, DeadLetter, Slot, Total
from examples.shop.pipeline import DEAD_LETTERS, TOTALS
from examples.shop.traffic import client_of
from millstream.client.admin import or_raise
from millstream.client.offsets import LATEST
from millstream.model.ids import Offset, TopicPartition


class Stored(NamedTuple):
    """Good orders in Parquet."""

    totals: dict[Slot, Total]
    order_count: int
    distinct_count: int
    """Less than the other when an order is there twice."""


class Results(NamedTuple):
    """Everything that can be compared."""

    totals: list[tuple[Slot, Total]]
    """As they are in the topic: a record that was written again is here twice."""
    dead_letters: dict[str, DeadLetter]
    """By the place of the record: one that was written again is here once."""
    stored: Stored


def results(servers: str, directory: Path) -> Results:
    """From the two topics and the Parquet files."""
    dead_letters = {
        row["key"].decode(): DeadLetter(row["headers"][0]["value"].decode(), row["value"])
        for row in rows(servers, DEAD_LETTERS, ["key", "value", "headers"])
    }
    totals = [total_from_json(row["value"]) for row in rows(servers, TOTALS, ["value"])]
    return Results(totals, dead_letters, stored_orders(directory / "parquet"))


def rows(servers: str, topic: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """All records of a topic."""
    client = client_of(servers)
    count = client.topics([topic])[topic].partition_count
    partitions = [TopicPartition(topic, index) for index in range(count)]
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
    for partition in partitions:
        end = or_raise(ends[partition]).offset
        if end:
            for batch in client.read_columns(partition, Offset(0), Offset(end), columns=columns):
                yield from batch.to_pylist()


def total_from_json(value: bytes) -> tuple[Slot, Total]:
    """A record of the topic of totals."""
    fields = json.loads(value)
    slot = Slot(datetime.fromisoformat(fields["window_start"]), fields["category"])
    return slot, Total(*(fields[name] for name in Total._fields))


def stored_orders(directory: Path) -> Stored:
    """Summed up here, by pyarrow."""
    names = ["order_id", "ordered_at", "category", "quantity", "price_cents"]
    orders = pq.read_table(directory, columns=names)
    ids = orders["order_id"]
    return Stored(_totals(orders), len(ids), pc.count_distinct(ids).as_py())


def _totals(orders: pa.Table) -> dict[Slot, Total]:
    revenue = pc.multiply(orders["quantity"].cast(pa.int64()), orders["price_cents"])
    # Spark stores moments without saying that they are UTC.
    moments = orders["ordered_at"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    start = pc.floor_temporal(moments, WINDOW_S, unit="second")
    columns = {"start": start, "category": orders["category"], "quantity": orders["quantity"]}
    grouped = pa.table({**columns, "revenue": revenue}).group_by(["start", "category"])
    summed = grouped.aggregate([([], "count_all"), ("quantity", "sum"), ("revenue", "sum")])
    return {
        Slot(row["start"], row["category"]): Total(
            row["count_all"], row["quantity_sum"], row["revenue_sum"]
        )
        for row in summed.to_pylist()
    }
