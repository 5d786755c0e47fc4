"""Which sessions are alive, until when, and on which connection.

Time is handed in. As in ZooKeeper deadlines are rounded up to the next tick, every word of a
client pushes its own further, and a restart gives every session its whole time-out again.
"""

import hmac
from dataclasses import dataclass

from millstream.coordination.keeper.protocol import PASSWORD_BYTES
from millstream.coordination.keeper.watches import ConnectionId
from millstream.model.ids import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """How long sessions may live without a ping; `None`: derived from the tick, as in ZooKeeper."""

    tick_ms: int = 500
    timeout_min_ms: int | None = None
    timeout_max_ms: int | None = None

    def granted_ms(self, requested_ms: int) -> int:
        low = 2 * self.tick_ms if self.timeout_min_ms is None else self.timeout_min_ms
        high = 20 * self.tick_ms if self.timeout_max_ms is None else self.timeout_max_ms
        return min(max(requested_ms, low), high)


def password_of(secret: bytes, session_id: SessionId) -> bytes:
    """A client that has it may take over the session; computed, not stored per session."""
    text = session_id.to_bytes(8, "big", signed=True)
    return hmac.digest(secret, text, "sha256")[:PASSWORD_BYTES]


@dataclass(slots=True)
class _Live:
    timeout_ms: int
    deadline_ms: int
    is_open: bool
    connection: ConnectionId | None = None
    address: str = ""


class LiveSessions:
    """Deadlines and connections of the sessions."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules
        self._live: dict[SessionId, _Live] = {}
        self._by_connection: dict[ConnectionId, SessionId] = {}
        self._open_at: dict[str, int] = {}

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._live

    def track(
        self, session_id: SessionId, *, timeout_ms: int, now_ms: int, is_open: bool = True
    ) -> None:
        """A new session, or one that a restart found.

        Only its client knows one that is not open yet, and it ends with its connection.
        """
        deadline_ms = self._deadline(now_ms + timeout_ms)
        self._live[session_id] = _Live(timeout_ms, deadline_ms, is_open)

    def is_open(self, session_id: SessionId) -> bool:
        return self._live[session_id].is_open

    def open(self, session_id: SessionId, address: str) -> int:
        """It outlives its connection from now on; returns its time-out."""
        live = self._live[session_id]
        live.is_open, live.address = True, address
        self._open_at[address] = self._open_at.get(address, 0) + 1
        return live.timeout_ms

    def open_at(self, address: str) -> int:
        """How many that address has opened since the start of the server."""
        return self._open_at.get(address, 0)

    def attach(
        self, session_id: SessionId, connection: ConnectionId, *, timeout_ms: int
    ) -> ConnectionId | None:
        """Attach the session to this connection; returns the connection it was on before.

        Its deadline stays until its client has proved to have the secret.
        """
        live = self._live[session_id]
        before, live.connection = live.connection, connection
        live.timeout_ms = timeout_ms
        if before is not None:
            del self._by_connection[before]
        self._by_connection[connection] = session_id
        return before

    def detach(self, connection: ConnectionId) -> None:
        """The connection is gone, the session is not."""
        session_id = self._by_connection.pop(connection, None)
        if session_id is not None:
            self._live[session_id].connection = None

    def remove(self, session_id: SessionId) -> ConnectionId | None:
        """Remove the session; returns its connection."""
        live = self._live.pop(session_id)
        if live.connection is not None:
            del self._by_connection[live.connection]
        if live.address:
            self._open_at[live.address] -= 1
            if not self._open_at[live.address]:
                del self._open_at[live.address]
        return live.connection

    def touch(self, session_id: SessionId, now_ms: int) -> None:
        live = self._live[session_id]
        live.deadline_ms = self._deadline(now_ms + live.timeout_ms)

    def of(self, connection: ConnectionId) -> SessionId | None:
        return self._by_connection.get(connection)

    def expired(self, now_ms: int) -> list[SessionId]:
        """Those whose time is up, oldest deadline first."""
        late = [one for one, live in self._live.items() if live.deadline_ms <= now_ms]
        return sorted(late, key=lambda one: (self._live[one].deadline_ms, one))

    def postpone(self, by_ms: int) -> None:
        """The server itself was stalled: no client's ping could be received."""
        for live in self._live.values():
            live.deadline_ms += by_ms

    def _deadline(self, time_ms: int) -> int:
        tick_ms = self._rules.tick_ms
        return (time_ms // tick_ms + 1) * tick_ms
