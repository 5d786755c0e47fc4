"""Observability of a running broker: counters, Prometheus text over HTTP, log lines.

Hot paths only add integers; names, labels and text are made at scrape time.
"""
