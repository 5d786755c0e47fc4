"""The records of the offsets topic, in the formats of Kafka 4.3: its tools decode them.

`entries.py` encodes and decodes batches of entries; `keys.py` and `values.py` have the formats.
"""
