"""One Spark session as a process of its own: takes jobs as JSON lines, answers with figures.

`python -m bench.spark_program SCRATCH JARS` is started by `bench.spark_drivers`, once for each
connector. Both have the same settings and the same jars; what differs is the name of the format.
"""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter as now_s
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from millstream.testing.spark.sessions import connector_jars, local_session

SETTINGS = {
    "spark.driver.memory": "3g",
    # The progress of all batches of a query is used.
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
QUERY_TIMEOUT_S = 300
CHECKS = ("rows", "value_bytes", "value_crc", "key_crc")
WRITERS = ("OverwriteByExpression", "InsertIntoHadoopFsRelationCommand")
"""Plan nodes that count the rows of a sink."""
Answer = dict[str, Any]


def check_columns() -> list[Any]:
    """Checksums of the rows."""
    parts = (
        F.count(F.lit(1)),
        F.sum(F.length("value")),
        F.sum(F.crc32("value")),
        F.sum(F.crc32("key")),
    )
    return [part.alias(name) for part, name in zip(parts, CHECKS, strict=True)]


class Program:
    """The jobs of a process; every public method is one."""

    def __init__(self, scratch: Path, jars: Path) -> None:
        self._scratch = scratch
        self._jars = connector_jars(jars)
        self._session: SparkSession | None = None
        self._frames: dict[str, DataFrame] = {}

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("no session was started")
        return self._session

    def session(self, master: str) -> Answer:
        """A new session in the same JVM, which keeps its compiled code."""
        if self._session is not None:
            self._session.stop()
        self._frames.clear()
        self._session = local_session(
            self._scratch, master=master, jars=self._jars, settings=SETTINGS
        )
        return {"version": self._session.version}

    def configure(self, settings: dict[str, str | None]) -> Answer:
        """Set the configuration of later jobs; None resets a setting."""
        for name, value in settings.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
        return {}

    # -- topic to DataFrame

    def read(self, source: str, options: dict[str, str], sink: str) -> Answer:
        frame = self._spark.read.format(source).options(**options).load()
        before = self._executions().executionsCount()
        start = now_s()
        if sink == "parquet":
            frame.write.parquet(self._fresh("parquet"))
        else:
            frame.write.format("noop").mode("overwrite").save()
        seconds = now_s() - start
        self._clean("parquet")
        return {"seconds": seconds, "rows": self._rows_written(before)}

    def check_read(self, source: str, options: dict[str, str], sink: str) -> Answer:
        """The same rows through the same sink, summed up."""
        frame = self._spark.read.format(source).options(**options).load()
        if sink == "parquet":
            path = self._fresh("parquet")
            frame.write.parquet(path)
            frame = self._spark.read.parquet(path)
        found = frame.agg(*check_columns()).collect()[0].asDict()
        self._clean("parquet")
        return found

    def stream(self, source: str, options: dict[str, str], sink: str) -> Answer:
        frame = self._spark.readStream.format(source).options(**options).load()
        return self._run_query(frame, sink)

    def check_stream(self, source: str, options: dict[str, str], sink: str) -> Answer:
        frame = self._spark.readStream.format(source).options(**options).load()
        answer = self._run_query(frame.observe("check", *check_columns()), sink)
        observed = answer["observed"]
        return {name: sum(one[name] or 0 for one in observed) for name in CHECKS}

    def _run_query(self, frame: DataFrame, sink: str, **options: str) -> Answer:
        writer = frame.writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", self._fresh("checkpoint")).options(**options)
        if sink == "parquet":
            writer = writer.option("path", self._fresh("parquet"))
        start = now_s()
        query = writer.start()
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            query.stop()
            raise TimeoutError(f"a query did not end in {QUERY_TIMEOUT_S} s")
        seconds = now_s() - start
        progress = [json.loads(one.json) for one in query.recentProgress]
        self._clean("parquet", "checkpoint")
        return {
            "seconds": seconds,
            "rows": sum(one["numInputRows"] for one in progress),
            "batches": [
                [one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000]
                for one in progress
                if one["numInputRows"]
            ],
            "observed": [
                one["observedMetrics"]["check"]
                for one in progress
                if one.get("observedMetrics", {}).get("check")
            ],
        }

    # -- DataFrame to topic

    def cache(self, name: str, path: str, partitions: int) -> Answer:
        """Cache rows in the JVM's memory, so that only the sink is measured."""
        frame = self._spark.read.parquet(path).repartition(partitions).cache()
        self._frames[name] = frame
        return frame.agg(*check_columns()).collect()[0].asDict()

    def uncache(self, name: str) -> Answer:
        self._frames.pop(name).unpersist(blocking=True)
        return {}

    def write(self, name: str, sink: str, options: dict[str, str]) -> Answer:
        frame = self._frames[name]
        start = now_s()
        frame.write.format(sink).mode("append").options(**options).save()
        return {"seconds": now_s() - start}

    def write_stream(
        self, path: str, files_per_batch: int, sink: str, options: dict[str, str]
    ) -> Answer:
        schema = self._spark.read.parquet(path).schema
        stream = self._spark.readStream.schema(schema)
        frame = stream.option("maxFilesPerTrigger", files_per_batch).parquet(path)
        return self._run_query(frame, sink, **options)

    # -- helpers

    def _fresh(self, name: str) -> str:
        self._clean(name)
        return str(self._scratch / name)

    def _clean(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self._scratch / name, ignore_errors=True)

    def _executions(self) -> Any:
        jvm_session = self._spark._jsparkSession  # noqa: SLF001
        return jvm_session.sharedState().statusStore()

    def _rows_written(self, before: int) -> int:
        """Rows by Spark's own count in the plans that ran since: a run must read all of them."""
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001
        store, rows = self._executions(), 0
        for index in range(before, store.executionsCount()):
            number = store.executionsList(index, 1).head().executionId()
            nodes = store.planGraph(number).allNodes()
            for place in range(nodes.size()):
                if any(name in nodes.apply(place).name() for name in WRITERS):
                    metrics = nodes.apply(place).metrics()
                    rows += _output_rows(metrics, store.executionMetrics(number))
        return rows


def _output_rows(metrics: Any, values: Any) -> int:
    for index in range(metrics.size()):
        metric = metrics.apply(index)
        if metric.name() == "number of output rows":
            return int(values.apply(metric.accumulatorId()).replace(",", ""))
    return 0


def serve(program: Program, requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        request = json.loads(line)
        job: Callable[..., Answer] = getattr(program, request.pop("job"))
        try:
            answer = job(**request)
        except Exception:  # noqa: BLE001 - the other process reports it
            answer = {"error": _shortened(traceback.format_exc())}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _shortened(trace: str) -> str:
    """Python's part is at the start, and each cause of Java's begins a line."""
    causes = [line for line in trace.splitlines() if line.startswith("Caused by:")]
    return "\n".join([trace[:3000], "...", *causes])


def main() -> None:
    # Output of Spark and its workers must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    scratch, jars = map(Path, sys.argv[1:3])
    serve(Program(scratch, jars), sys.stdin, answers)


if __name__ == "__main__":
    main()
