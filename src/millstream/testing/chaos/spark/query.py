"""The queries that chaos kills: a topic through Spark to a topic, or to Parquet files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millstream.testing.chaos.spark.steps import Sink
from millstream.testing.spark.sessions import SHORT_LIVED_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER: Final = "50 milliseconds"
SINK_ROWS_PER_BATCH: Final = 10
"""Few, so that a task's write has a middle."""
SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(SINK_ROWS_PER_BATCH),
    "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
    # Every batch stays in the checkpoint, to be compared.
    "spark.sql.streaming.minBatchesToRetain": "10000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySpec:
    """Everything that a Spark program needs to start a query, or to continue it."""

    name: str
    servers: str
    source: str
    sink: Sink
    target: str
    """A topic or a directory."""
    checkpoint: str
    control: str
    """The path of the control server's socket."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source; those of the client are also used for the sink."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"sink": self.sink.value}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "QuerySpec":
        return cls(**(given | {"sink": Sink(given["sink"])}))


def register_hooks(session: "SparkSession") -> None:
    """Register the hooked data source, before the first query."""
    from millstream.testing.chaos.spark.hooks import HookedDataSource

    session.dataSource.register(HookedDataSource)


def start_query(session: "SparkSession", spec: QuerySpec) -> "StreamingQuery":
    """Start a query that runs until it is stopped or fails."""
    from millstream.testing.chaos.spark.hooks import CONTROL_OPTION, FORMAT, QUERY_OPTION

    own = {
        CONTROL_OPTION: spec.control,
        QUERY_OPTION: spec.name,
        "kafka.bootstrap.servers": spec.servers,
    }
    reader = session.readStream.format(FORMAT).options(**own, **spec.options)
    rows = reader.option("subscribe", spec.source).load()
    if spec.sink is Sink.TOPIC:
        writer = rows.select("key", "value").writeStream.format(FORMAT)
        client = {name: value for name, value in spec.options.items() if name.startswith("kafka.")}
        writer = writer.options(**own, **client).option("topic", spec.target)
    else:
        writer = rows.select("partition", "offset", "value").writeStream.format("parquet")
        writer = writer.option("path", spec.target)
    writer = writer.option("checkpointLocation", spec.checkpoint)
    return writer.trigger(processingTime=TRIGGER).start()
