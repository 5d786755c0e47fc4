"""The source and the sink under the name `millstream`.

Readers and writers are imported when they are used: this module is loaded whenever Spark searches
for any Python data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from millstream.pipelines.spark.spark_process import loading

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )


class MillstreamDataSource(DataSource):
    """`format("millstream")`: topics of Millstream or of Apache Kafka as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        with loading():
            from millstream.pipelines.spark.columns import source_schema

            return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        with loading():
            from millstream.pipelines.spark.batch_reader import BatchReader

            return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with loading():
            from millstream.pipelines.spark.stream_reader import StreamReader

            return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        with loading():
            from millstream.pipelines.spark.batch_writer import BatchWriter

            return BatchWriter(self.options, schema, is_overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamArrowWriter:
        # Set in complete mode, where every batch has the whole result: it is appended to the
        # topic, as with Spark's connector.
        del overwrite
        with loading():
            from millstream.pipelines.spark.stream_writer import StreamWriter

            return StreamWriter(self.options, schema)
