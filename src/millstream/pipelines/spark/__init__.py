"""The data source that Spark calls, built on the decisions in `pipelines/` and the client.

The only part of Millstream that imports pyspark. Spark pickles readers, writers and partitions
between processes and creates new ones at any time, so constructors here open nothing.
"""
