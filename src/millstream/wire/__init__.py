"""The Kafka protocol without I/O: message catalogue, codecs, framing. Not built yet."""
