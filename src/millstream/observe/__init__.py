"""What a running broker tells about itself: counters, Prometheus text over HTTP, log lines.

Hot paths only add plain integers; names, labels and text come into being at scrape time.
"""
