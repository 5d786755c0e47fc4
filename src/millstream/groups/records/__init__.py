"""The records of the offsets topic, in the formats of Kafka 4.3: its tools decode them."""
