"""Members of consumer groups by the contract of the client programs (see the README beside).

A member polls in a thread of its own until it is told to leave. What it owns, does and commits
goes to its log, line by line, and is checked when everything is over.
"""

import faulthandler
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from client_contract import TIMEOUT_S, Action, Ask, RefusedError

Place = tuple[str, int]

POLL_S: Final = 0.1
POLL_RECORDS_MAX: Final = 50
METADATA_MAX_AGE_MS: Final = 1_000
"""New topics and partitions are seen so soon; the defaults are minutes."""
BACKOFF_MS: Final = 100
LEAVE_MAX_S: Final = TIMEOUT_S


class MemberLog:
    """Every line reaches the system at once: a kill loses none."""

    def __init__(self, path: str) -> None:
        place = Path(path)
        self._file: IO[bytes] = place.open("ab", buffering=0)

    def write(self, event: str, **said: object) -> None:
        line = json.dumps({"t": time.monotonic_ns(), "e": event, **said})
        self._file.write(line.encode() + b"\n")


class Member:
    """What all members have; a client adds `work`, which ends when `is_leaving` is set."""

    def __init__(self, ask: Ask) -> None:
        self.ask: Final = ask
        self.log: Final = MemberLog(ask["log"])
        self.is_leaving: Final = threading.Event()
        self.owned: Final[set[Place]] = set()
        self._stalled_until_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.log.write(
            "began",
            member=ask["member"],
            group=ask["group"],
            instance=ask["instance"],
            protocol=ask["protocol"],
        )

    def work(self) -> None:
        """Subscribe, poll, process, commit, and close in the end."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self.is_leaving.set()
        self._thread.join(LEAVE_MAX_S)
        if self._thread.is_alive():
            raise RefusedError(None, f"did not leave within {LEAVE_MAX_S:.0f} s")

    def stall(self, ms: int) -> None:
        """It polls no more for so long."""
        self._stalled_until_s = time.monotonic() + ms / 1000

    @property
    def stall_left_s(self) -> float:
        return self._stalled_until_s - time.monotonic()

    def wait_while_stalled(self) -> None:
        while self.stall_left_s > 0 and not self.is_leaving.wait(min(self.stall_left_s, POLL_S)):
            pass

    # -- what happened ---------------------------------------------------------------------

    def assigned(self, places: Iterable[Place], generation: int | None) -> None:
        added = list(places)
        self.owned.update(added)
        self.log.write("assigned", parts=added, gen=generation)

    def given_up(self, event: str, places: Iterable[Place]) -> None:
        """Revoked or lost."""
        gone = list(places)
        self.owned.difference_update(gone)
        if gone:
            self.log.write(event, parts=gone)

    def processed(self, place: Place, offset: int, value: bytes | None) -> None:
        topic, partition = place
        self.log.write("processed", topic=topic, p=partition, o=offset, v=(value or b"").decode())

    def committed(self, offsets: Mapping[Place, int], send: Callable[[], object]) -> None:
        """Send the commit and note what became of it."""
        began_ns = time.monotonic_ns()
        try:
            send()
        except Exception as error:  # noqa: BLE001 - noted: the checker knows what may be refused
            self.refused(offsets, error)
        else:
            self.acknowledged(offsets, began_ns)

    def acknowledged(self, offsets: Mapping[Place, int], began_ns: int) -> None:
        told = [[*place, offset] for place, offset in offsets.items()]
        self.log.write("committed", **{"from": began_ns, "offsets": told})

    def refused(self, offsets: Mapping[Place, int], error: BaseException) -> None:
        told = [[*place, offset] for place, offset in offsets.items()]
        self.log.write("refused", offsets=told, why=f"{type(error).__name__}: {error}")

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - told to the checker
            self.log.write("error", why=f"{type(error).__name__}: {error}")
        else:
            self.given_up("revoked", list(self.owned))
            self.log.write("left")


def group_actions(member_of: Callable[[Ask], Member]) -> Mapping[str, Action]:
    """`join`, `stall` and `leave` for members that `member_of` makes."""
    faulthandler.register(signal.SIGUSR1)  # for a look at a client that hangs
    members: dict[str, Member] = {}

    def join(ask: Ask) -> Any:
        members[ask["member"]] = member_of(ask)
        members[ask["member"]].start()

    def stall(ask: Ask) -> Any:
        members[ask["member"]].stall(ask["ms"])

    def leave(ask: Ask) -> Any:
        members.pop(ask["member"]).leave()

    return {"join": join, "stall": stall, "leave": leave}
