"""Topics as Spark DataFrames: the data source and sink `millstream`.

The modules here decide (options, offsets, ranges, admission, lost data, schema, progress) and
import neither pyspark nor the client, so they are tested without either. `spark` is what Spark
calls. Start at `options.py` and `spark/data_source.py`.
"""
