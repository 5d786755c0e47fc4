"""Everything that touches PySpark: data source, sink, pipelines, mirroring. Not built yet."""
