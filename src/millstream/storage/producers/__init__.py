"""Producers of a partition: idempotence, open transactions, snapshots.

`machine.py` decides (new, a retry, out of order), `undecided.py` has what holds the last stable
offset back, `producer_log.py` feeds both from a log, `snapshot.py` is Kafka's file format.
"""
