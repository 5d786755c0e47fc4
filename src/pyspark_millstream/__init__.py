"""Where Spark looks for data sources: it imports every installed module named `pyspark_*`.

So `spark.read.format("millstream")` works after `pip install "millstream[spark]"`, without a jar
and without `register`. Spark imports this at the first look-up of any source, in every session:
it must be quick, and it must never fail.
"""

from millstream.pipelines.spark.data_source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
