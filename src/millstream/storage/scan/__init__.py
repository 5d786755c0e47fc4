"""The offline scan of a partition directory, for `millstream log verify`.

`partition_scan.py` checks everything that must hold of its files without trusting any index.
"""
