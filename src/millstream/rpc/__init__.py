"""The pipelined request connection shared by brokers and clients. Not built yet."""
