"""The shop: a process that writes its day of orders to a topic, faster than the day was.

It prints a line of JSON for every tick: how many orders are stored, and what time it is in the
shop. After the last one it waits for a line on its input, and then writes the first order of the
next morning; whoever started it says when.
"""

import argparse
import json
import sys
import time
from typing import NamedTuple, Self

import pyarrow as pa

from examples.shop import catalogue
from examples.shop.events import DAY_START, TICK_COUNT, TICK_S, TOPIC, Day, Orders
from millstream.client.blocking import BlockingClient, client_for


class OrdersProgress(NamedTuple):
    """A line of its output."""

    written: int
    shop_time_s: float
    """Since 1970."""

    def line(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_line(cls, line: str) -> Self:
        return cls(**json.loads(line))


def client_of(servers: str) -> BlockingClient:
    return client_for({"bootstrap.servers": servers, "compression.type": "lz4"})


def columns(orders: Orders) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(orders.keys(), pa.binary()),
            "value": pa.array(orders.values(), pa.binary()),
        }
    )


def write_catalogue(servers: str, seed: int) -> None:
    """All that was ever said about the products, the newest last."""
    changes = catalogue.changes(seed)
    rows = pa.record_batch(
        {
            "key": pa.array([change.key for change in changes], pa.binary()),
            "value": pa.array([change.value for change in changes], pa.binary()),
        }
    )
    with client_of(servers).column_writer(topic=catalogue.TOPIC) as writer:
        writer.write(rows)


def write_day(servers: str, day: Day, *, seconds: float) -> None:
    """One tick after the other, evenly over so many seconds, or as fast as it can."""
    started_s = time.monotonic()
    written = 0
    with client_of(servers).column_writer(topic=TOPIC) as writer:
        for number, orders in enumerate(day.ticks()):
            wait_s = started_s + seconds * number / TICK_COUNT - time.monotonic()
            time.sleep(max(wait_s, 0))
            writer.write(columns(orders))
            # All partitions are at the same tick before the next begins: an order is never
            # later than a tick and its own delay, whatever is read in between.
            writer.flush()
            written += len(orders.order_id)
            print(
                OrdersProgress(written, DAY_START.timestamp() + (number + 1) * TICK_S).line(),
                flush=True,
            )
        if sys.stdin.readline():  # end of file: the demo has ended
            writer.write(columns(day.next_morning()))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="writes a day of orders")
    parser.add_argument("servers")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    write_day(given.servers, Day(given.seed, given.events), seconds=given.seconds)


if __name__ == "__main__":
    main()
