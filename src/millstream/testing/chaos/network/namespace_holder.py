"""Holds one network namespace for as long as its creator lives, and opens connections in it.

    python namespace_holder.py  # with one end of a Unix socket pair as standard input

A namespace lives as long as a process in it does, so nothing needs to be removed: when the creator
is gone, even by SIGKILL, the socket closes, this process ends, and the namespace disappears with
all its interfaces and rules. On request (one packet `host port timeout_s`) it connects from
inside and hands the connection out, so that a test talks to nodes without being in their network.

Run by its path and without importing this package: there is one for every node.
"""

import socket
import sys

READY = b"ready"
CONNECTED = b"connected"
PACKET_BYTES_MAX = 4096


def serve(control: socket.socket) -> None:
    """Serve until the creator is gone."""
    control.send(READY)
    while request := control.recv(PACKET_BYTES_MAX):
        host, port, timeout_s = request.decode().split()
        try:
            made = socket.create_connection((host, int(port)), float(timeout_s))
        except OSError as error:
            control.send(f"{type(error).__name__}: {error}".encode())
            continue
        with made:
            socket.send_fds(control, [CONNECTED], [made.fileno()])


def main() -> int:
    """Ignore Ctrl-C, which is for the creator: this process ends after it."""
    with socket.socket(fileno=sys.stdin.fileno()) as control:
        try:
            serve(control)
        except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
