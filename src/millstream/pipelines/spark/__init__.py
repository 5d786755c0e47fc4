"""The data source itself: what Spark calls, made of the decisions in `pipelines/` and the client.

The only part of Millstream that imports pyspark. Spark pickles readers, writers and partitions
between processes and makes new ones whenever it likes, so constructors here open nothing.
"""
