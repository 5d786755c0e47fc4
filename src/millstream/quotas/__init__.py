"""Token buckets for bytes, requests and connections. Not built yet."""
