"""Apache Kafka's kafka-consumer-groups, as an operator runs it on one group."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kits.interop.client_kit import ConnectedClient, new_topic_name, some_records
from kits.interop.kafka_tools import run_script
from kits.interop.waiting import wait_until
from millstream.testing.history.group_events import Committed, LineFollower, member_event

RECORDS: Final = 10
TOOL: Final = "kafka-consumer-groups"

Row = Mapping[str, str]


class GroupTool:
    """One group on one topic of two partitions, with ten records in the first."""

    def __init__(self, java: ConnectedClient, topic: str, directory: Path) -> None:
        self.java: Final = java
        self.topic: Final = topic
        self.group: Final = new_topic_name("tool-group")
        self._directory = directory
        self._members = 0
        java.produce(topic, some_records(RECORDS))

    @contextmanager
    def member(self, protocol: str) -> Iterator[str]:
        """A running member that has read and committed everything."""
        self._members += 1
        name = f"{self.group}-{self._members}"
        log = self._directory / f"{name}.jsonl"
        self.java.request(
            "join",
            member=name,
            log=str(log),
            group=self.group,
            topics=[self.topic],
            pattern=None,
            protocol=protocol,
            instance=None,
            session_ms=10_000,
            heartbeat_ms=1_000,
            poll_interval_ms=60_000,
        )
        wait_until("everything is committed", lambda: self._committed(log) == RECORDS)
        yield name
        self.java.request("leave", member=name)

    def _committed(self, log: Path) -> int:
        events = [member_event(line) for line in LineFollower(log).take()]
        commits = [one.offsets for one in events if isinstance(one, Committed)]
        return max((offset for one in commits for offset in one.values()), default=0)

    def read_all(self, protocol: str = "eager") -> None:
        """Commit through a member that leaves afterwards."""
        with self.member(protocol):
            pass

    def run(self, *arguments: str, must_work: bool = True) -> str:
        done = run_script(self.java, TOOL, "--group", self.group, *arguments, must_work=must_work)
        return done.text + done.errors

    def rows(self, *arguments: str) -> list[Row]:
        """The table that is printed."""
        done = run_script(self.java, TOOL, "--group", self.group, *arguments)
        lines = [line.split() for line in done.text.splitlines() if line.strip()]
        at = next(n for n, words in enumerate(lines) if "GROUP" in words)
        head = lines[at]
        return [dict(zip(head, row, strict=False)) for row in lines[at + 1 :]]

    def offsets(self) -> dict[int, tuple[str, str, str]]:
        """By partition: what is committed, the end of the log, the lag."""
        return {
            int(row["PARTITION"]): (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"])
            for row in self.rows("--describe")
        }


def listed(java: ConnectedClient, *arguments: str) -> list[list[str]]:
    output = run_script(java, TOOL, "--list", *arguments).text
    return [line.split() for line in output.splitlines()]
