"""Producers of a partition: idempotence, open transactions, snapshots."""
