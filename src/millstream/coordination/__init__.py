"""Sessions, ephemeral nodes, watches: the ZooKeeper port and its adapters. Not built yet."""
