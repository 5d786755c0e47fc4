"""Everything that touches PySpark: data source, sink, pipelines, mirroring.

What decides (options, offsets, ranges, admission, lost data, schema, progress) imports neither
PySpark nor the client, so it is tested without either. The data source itself is not built yet.
"""
