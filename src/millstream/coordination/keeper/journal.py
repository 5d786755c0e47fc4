"""The server's files in one directory; a crash loses nothing that was acknowledged.

    identity                    the secret behind session passwords and checksums; made once
    cluster.secret              what brokers prove themselves with; made where there is none
    snapshot.00000000000004d2   the whole state after that zxid
    log.00000000000004d3        what came after it, from that zxid on, in batches

A log that has grown large is closed. Off the loop, the snapshot and the closed logs are then
folded into a new snapshot, by the same code that a start uses, and removed: the state in memory
is not touched for it, and disk use stays near one snapshot and two logs.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from millstream.coordination.credentials import Credentials, parse_secret
from millstream.coordination.keeper.batches import encode_batch, walk_log
from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.jute import MalformedRequest
from millstream.coordination.keeper.limits import LOG_ROLL_BYTES
from millstream.coordination.keeper.snapshots import decode_snapshot, encode_snapshot
from millstream.coordination.keeper.state import State
from millstream.model.errors import OperatingError
from millstream.model.ids import Zxid
from millstream.model.invariant import invariant
from millstream.runtime.disk import (
    DirectoryLock,
    Disk,
    File,
    read_whole,
    write_all_atomically,
    write_atomically,
)
from millstream.runtime.randomness import Randomness

SECRET_BYTES: Final = 32
SECRET_FILE: Final = "cluster.secret"  # noqa: S105 - its name
_IDENTITY: Final = "identity"
_SNAPSHOT: Final = "snapshot."
_LOG: Final = "log."
_TEMPORARY: Final = ".tmp"
_VERSION: Final = 1


class KeeperDataDamaged(OperatingError):
    """The files contradict themselves; nothing was changed."""


class KeeperDataLocked(OperatingError):
    """Another process uses the directory."""


class Recovered(NamedTuple):
    """The state recovered from the files."""

    state: State
    secret: bytes
    credentials: Credentials
    truncated_bytes: int
    """The size of a torn end that was truncated: it was never acknowledged."""


class Journal:
    """Blocking. `append` and `fold` may run in two threads at once, but each only once."""

    def __init__(self, disk: Disk, directory: str, *, roll_bytes: int = LOG_ROLL_BYTES) -> None:
        self._disk = disk
        self.directory = directory
        self._roll_bytes = roll_bytes
        self._lock: DirectoryLock | None = None
        self._secret = b""
        self._log: File | None = None
        self._log_bytes = 0

    # -- start and end ----------------------------------------------------------------------

    def open(self, randomness: Randomness, credentials: Credentials | None = None) -> Recovered:
        """Lock the directory and read it; raises KeeperDataDamaged, KeeperDataLocked, OSError.

        Without `credentials` they are in the directory, and made if they are not.
        """
        _make_directories_durably(self._disk, self.directory)
        try:
            self._lock = self._disk.lock_directory(self.directory)
        except BlockingIOError as error:
            raise KeeperDataLocked(f"{self.directory} is in use by another process") from error
        try:
            for name in self._names():
                if name.endswith(_TEMPORARY):
                    self._disk.remove(self._path(name))
            self._secret, own = self._read_or_make_secrets(randomness, credentials)
            state, truncated_bytes = self._load()
        except BaseException:
            self.close()
            raise
        return Recovered(state, self._secret, own, truncated_bytes)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read_or_make_secrets(
        self, randomness: Randomness, given: Credentials | None
    ) -> tuple[bytes, Credentials]:
        """The server's own, and the cluster's; raises KeeperDataDamaged, BadSecretFile."""
        path, shared_path = self._path(_IDENTITY), self._path(SECRET_FILE)
        new: dict[str, bytes] = {}
        if not self._disk.exists(path):
            if any(name.startswith((_LOG, _SNAPSHOT)) for name in self._names()):
                raise KeeperDataDamaged(f"{path} is missing, although there is data")
            document = {"version": _VERSION, "secret": randomness.secret(SECRET_BYTES).hex()}
            new[path] = json.dumps(document).encode()
        if given is None and not self._disk.exists(shared_path):
            new[shared_path] = randomness.secret(SECRET_BYTES).hex().encode() + b"\n"
        if new:
            write_all_atomically(self._disk, new)
        own = _decode_identity(path, read_whole(self._disk, path))
        if given is not None:
            return own, given
        return own, Credentials(parse_secret(read_whole(self._disk, shared_path), shared_path))

    def _load(self) -> tuple[State, int]:
        state = self._read_snapshot()
        logs = self._logs_after(state.last_zxid)
        for name in logs[:-1]:
            self._replay(state, name, is_last=False)
        last = logs[-1] if logs else _name(_LOG, state.last_zxid + 1)
        self._log = self._disk.open_write(self._path(last))
        size_before = self._log.size()
        valid_bytes = self._replay(state, last, is_last=True)
        if valid_bytes < size_before:
            self._log.truncate(valid_bytes)
        # Also without a torn end: what a killed process wrote and never synced is taken for
        # durable from here on. And the name of a log just made must last as long as its batches.
        self._log.sync()
        self._disk.sync_directory(self.directory)
        self._log_bytes = valid_bytes
        return state, size_before - valid_bytes

    # -- writing ----------------------------------------------------------------------------

    def append(self, txns: Sequence[Txn]) -> Zxid | None:
        """Durable on return. Gives the zxid before which all logs may be folded, if any.

        After an OSError nothing may be appended any more: it is unknown what the disk has.
        """
        closed_before = None
        if self._log_bytes >= self._roll_bytes:
            self._roll(txns[0].zxid)
            closed_before = txns[0].zxid
        invariant(self._log is not None, "append before open")
        if self._log is not None:
            batch = encode_batch(txns, self._secret)
            self._log.write_at(self._log_bytes, batch)
            self._log.sync()
            self._log_bytes += len(batch)
        return closed_before

    def _roll(self, first_zxid: Zxid) -> None:
        if self._log is not None:
            self._log.close()
        self._log = self._disk.open_write(self._path(_name(_LOG, first_zxid)))
        self._log_bytes = 0
        self._disk.sync_directory(self.directory)

    def fold(self, before: Zxid) -> None:
        """Make a snapshot of everything before this zxid, and remove what it replaces."""
        state = self._read_snapshot()
        for name in self._logs_after(state.last_zxid):
            if _zxid(name) < before:
                self._replay(state, name, is_last=False)
        if state.last_zxid != before - 1:
            raise KeeperDataDamaged(f"{self.directory}: logs end at {state.last_zxid}")
        path = self._path(_name(_SNAPSHOT, state.last_zxid))
        try:
            write_atomically(self._disk, path, encode_snapshot(state))
        except OSError:
            with suppress(OSError):  # a partial snapshot must not take the log's space
                self._disk.remove(path + _TEMPORARY)
            raise
        for name in self._names():
            is_old = (name.startswith(_LOG) and _zxid(name) < before) or (
                name.startswith(_SNAPSHOT) and _zxid(name) < state.last_zxid
            )
            if is_old:
                self._disk.remove(self._path(name))
        self._disk.sync_directory(self.directory)

    # -- reading ----------------------------------------------------------------------------

    def _read_snapshot(self) -> State:
        names = self._numbered(_SNAPSHOT)
        if not names:
            return State()
        path = self._path(names[-1])
        try:
            state = decode_snapshot(read_whole(self._disk, path))
        except (MalformedRequest, KeyError) as error:
            raise KeeperDataDamaged(f"{path}: {error}") from error
        if state.last_zxid != _zxid(names[-1]):
            raise KeeperDataDamaged(f"{path} is the snapshot of {state.last_zxid}")
        return state

    def _logs_after(self, zxid: Zxid) -> list[str]:
        """Logs with something later than the snapshot; older ones were left by a crash."""
        names = self._numbered(_LOG)
        needed = [
            name
            for name, following in zip(names, [*names, None][1:], strict=True)
            if following is None or _zxid(following) > zxid + 1
        ]
        if needed and _zxid(needed[0]) > zxid + 1:
            raise KeeperDataDamaged(f"{self.directory}: nothing between {zxid} and {needed[0]}")
        return needed

    def _replay(self, state: State, name: str, *, is_last: bool) -> int:
        """Apply what is new in a log; returns where its complete batches end."""
        path = self._path(name)
        data = read_whole(self._disk, path)
        try:
            walked = walk_log(data, self._secret)
            for txn in walked.txns:
                if txn.zxid > state.last_zxid:
                    if txn.zxid != state.last_zxid + 1:
                        raise KeeperDataDamaged(f"{path}: {txn.zxid} after {state.last_zxid}")
                    state.replay(txn)
        except (MalformedRequest, KeyError) as error:
            raise KeeperDataDamaged(f"{path}: {error!r}") from error
        if walked.has_batch_behind or (walked.valid_bytes < len(data) and not is_last):
            raise KeeperDataDamaged(f"{path} is broken at byte {walked.valid_bytes}")
        return walked.valid_bytes

    def _names(self) -> list[str]:
        return self._disk.list_directory(self.directory)

    def _numbered(self, prefix: str) -> list[str]:
        return [
            name
            for name in self._names()
            if name.startswith(prefix) and not name.endswith(_TEMPORARY)
        ]

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def _name(prefix: str, zxid: int) -> str:
    return f"{prefix}{zxid:016x}"


def _zxid(name: str) -> Zxid:
    try:
        return Zxid(int(name.rpartition(".")[2], 16))
    except ValueError as error:
        raise KeeperDataDamaged(f"unexpected file name: {name}") from error


def _decode_identity(path: str, data: bytes) -> bytes:
    try:
        document = json.loads(data)
        secret = bytes.fromhex(document["secret"])
        is_known = document["version"] == _VERSION and len(secret) == SECRET_BYTES
    except (ValueError, KeyError, TypeError) as error:
        raise KeeperDataDamaged(f"{path}: {error!r}") from error
    if not is_known:
        raise KeeperDataDamaged(f"{path} is of another version")
    return secret


def _make_directories_durably(disk: Disk, path: str) -> None:
    missing = []
    parent = path.rstrip("/")
    while parent and not disk.is_directory(parent):
        missing.append(parent)
        parent = parent.rpartition("/")[0]
    disk.make_directories(path)
    for made in reversed(missing):
        disk.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))
