"""Orders of a shop with PySpark: read, checked, enriched, stored, summed up; broken ones set aside.

    orders --> parse --> join products --> good ones: Parquet, and sums per category --> totals
                                      +--> broken ones, with the reason --> dead-letters

Two queries read the topic, because one query can give only one kind of result: `orders` stores
single orders and sets broken ones aside, `totals` keeps sums in Spark's state. Each has a
checkpoint of its own, so each goes on where it was after a stop or a crash.

It runs alone, against Millstream or Apache Kafka, once the four topics are there:

    python examples/shop/pipeline.py localhost:9092 build/shop
"""

import sys
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.spark import session

ORDERS, PRODUCTS, TOTALS, DEAD_LETTERS = "orders", "products", "totals", "dead-letters"
QUERIES: Final = ("orders", "totals")

ORDER: Final = """
    order_id BIGINT, customer STRING, ordered_at TIMESTAMP,
    product STRING, quantity INT, price_cents BIGINT, unreadable STRING
"""
PLACE: Final = "topic STRING, partition INT, offset BIGINT"
"""Of a record: what else a dead letter tells."""
PRODUCT: Final = "name STRING, category STRING"

WINDOW: Final = "15 minutes"
LATE: Final = "1 hour"
"""How late an order may come. A window is summed up when one is seen that is this much newer. It
must allow for partitions that are read at different speeds while the query catches up."""
ROWS_PER_BATCH_MAX: Final = 100_000
"""After a long stop the query catches up in pieces of this size, not in one of any size."""
TRIGGER: Final = "1 second"


class Pipeline:
    """Both queries over one cluster and one directory."""

    def __init__(self, spark: SparkSession, servers: str, directory: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._directory = directory

    def start(self) -> list[StreamingQuery]:
        """They run until they are stopped."""
        products = self._products()
        single = with_fault(parsed(self._orders(f"value BINARY, {PLACE}")), products)
        summed = with_fault(parsed(self._orders("value BINARY")), products)
        return [
            self._query("orders", single).foreachBatch(self._store).start(),
            self._query("totals", totals(summed.where("fault IS NULL")))
            .format("millstream")
            .option("kafka.bootstrap.servers", self._servers)
            .option("topic", TOTALS)
            .start(),
        ]

    def _orders(self, columns: str) -> DataFrame:
        """The topic as a stream. Naming columns is optional, and saves those that are left out."""
        return (
            self._spark.readStream.format("millstream")
            .schema(columns)
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", ORDERS)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS_PER_BATCH_MAX)
            .load()
        )

    def _products(self) -> DataFrame:
        """The compacted topic as a table. Without `cache` every batch would read it again.

        It is read here and now: two queries that fill a cache at the same time share a plan which
        Spark changes while it sends it to its workers.
        """
        changes = (
            self._spark.read.format("millstream")
            .schema("key BINARY, value BINARY, offset BIGINT")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", PRODUCTS)
            .load()
        )
        products = newest(changes, PRODUCT).withColumnRenamed("key", "product").cache()
        products.count()
        return products

    def _query(self, name: str, result: DataFrame) -> DataStreamWriter:
        return (
            result.writeStream.queryName(name)
            .trigger(processingTime=TRIGGER)
            .option("checkpointLocation", str(self._directory / "checkpoints" / name))
        )

    def _store(self, batch: DataFrame, batch_id: int) -> None:
        """Good orders to Parquet, the others to the dead-letter topic.

        A batch that was interrupted comes again, with the same number and the same rows. Its
        directory is then written anew; its dead letters are written twice, under the same keys.
        """
        batch.persist()
        good = batch.where("fault IS NULL").drop("fault", "value", "topic", "partition", "offset")
        good.write.mode("overwrite").parquet(f"{self._directory}/parquet/batch={batch_id}")
        (
            dead_letters(batch.where("fault IS NOT NULL"))
            .write.format("millstream")
            .mode("append")
            .option("kafka.bootstrap.servers", self._servers)
            .option("topic", DEAD_LETTERS)
            .save()
        )
        batch.unpersist()


def newest(changes: DataFrame, fields: str) -> DataFrame:
    """A compacted topic as a table: of each key the last value, unless that is none.

    The broker compacts now and then, so older values may still be there.
    """
    last = changes.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    row = F.from_json(F.col("value").cast("string"), fields).alias("row")
    kept = last.where("value IS NOT NULL")
    return kept.select(F.col("key").cast("string"), row).select("key", "row.*")


def parsed(orders: DataFrame) -> DataFrame:
    """Records with the fields of their JSON; what is no such JSON is not `is_readable`."""
    text = F.col("value").cast("string")
    order = F.from_json(text, ORDER, {"columnNameOfCorruptRecord": "unreadable"})
    is_readable = F.col("order").isNotNull() & F.col("order.unreadable").isNull()
    read = orders.withColumn("order", order).withColumn("is_readable", is_readable)
    return read.select(*orders.columns, "is_readable", "order.*").drop("unreadable")


def with_fault(orders: DataFrame, products: DataFrame) -> DataFrame:
    """Orders with the category of their product, and in `fault` what is wrong: NULL is good."""
    enriched = orders.join(F.broadcast(products), "product", "left")
    return enriched.withColumn("fault", fault()).drop("is_readable")


def fault() -> Column:
    """The first thing that is wrong with an order."""
    required = ("order_id", "ordered_at", "product", "quantity", "price_cents")
    return (
        F.when(~F.col("is_readable"), "unreadable")
        .when(reduce(or_, (F.col(name).isNull() for name in required)), "incomplete")
        .when((F.col("quantity") <= 0) | (F.col("price_cents") < 0), "impossible")
        .when(F.col("category").isNull(), "unknown product")
    )


def totals(orders: DataFrame) -> DataFrame:
    """A record for each window and category, written once, when no order for it can come."""
    revenue = F.col("quantity") * F.col("price_cents")
    summed = (
        orders.withWatermark("ordered_at", LATE)
        .groupBy(F.window("ordered_at", WINDOW), "category")
        .agg(
            F.count("*").alias("orders"),
            F.sum("quantity").alias("units"),
            F.sum(revenue).alias("revenue_cents"),
        )
        .select(F.col("window.start").alias("window_start"), "*")
        .drop("window")
    )
    slot = F.struct("window_start", "category")
    return summed.select(
        F.to_json(slot).alias("key"), F.to_json(F.struct(*summed.columns)).alias("value")
    )


def dead_letters(broken: DataFrame) -> DataFrame:
    """The records as they came; the key says from where, a header says why."""
    place = F.concat_ws("/", "topic", F.col("partition"), F.col("offset"))
    reason = F.struct(F.lit("fault").alias("key"), F.col("fault").cast("binary").alias("value"))
    return broken.select(place.alias("key"), "value", F.array(reason).alias("headers"))


def main() -> None:
    """Both queries until one fails, or Ctrl-C."""
    servers, directory = sys.argv[1:]
    spark = session(app_name="shop")
    Pipeline(spark, servers, Path(directory).absolute()).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
