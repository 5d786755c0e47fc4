"""A program of its own: how long a test waits for a broker, from the import to the first record.

Arguments: the frames of a CreateTopics and a Produce request (version 7) in hexadecimal. The client
is a bare socket, so that only our side is counted. Prints seconds.
"""

import sys
import time

BEHIND_ERROR_CODE = 28
"""Bytes of a Produce answer, version 7, behind its only error code."""

begin = time.perf_counter()

from millstream.testing import BrokerThread  # noqa: E402 - the import is part of what is measured

with BrokerThread() as broker:
    import socket

    def answer(connection: socket.socket, frame: bytes) -> bytes:
        connection.sendall(frame)
        got = b""
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            got += connection.recv(65536)
        return got

    with socket.create_connection((broker.host, broker.port)) as connection:
        answer(connection, bytes.fromhex(sys.argv[1]))
        stored = answer(connection, bytes.fromhex(sys.argv[2]))
    seconds = time.perf_counter() - begin

if any(stored[-BEHIND_ERROR_CODE - 2 : -BEHIND_ERROR_CODE]):
    sys.exit("not acknowledged")
print(seconds)
