"""Client programs for tests: what each supports, and how to send commands (clients/README.md)."""

import base64
import itertools
import json
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kits.interop.client_targets import CODECS, PEERS
from kits.paths import ROOT
from millstream.runtime.clock import SystemClock
from millstream.testing.peers.client_programs import RUNTIMES, client_command

PROGRAMS: Final = ROOT / "tests" / "interop" / "clients"
ANSWER_TIMEOUT_S: Final = 90.0
LOG_TAIL_CHARACTERS: Final = 4000
START_MS: Final = SystemClock().wall_ms() - 3_600_000
"""An hour ago: a broker soon deletes what is older than a topic's retention."""

_names = itertools.count()


class ErrorNumber:
    """Those numbers of the protocol that tests name."""

    OFFSET_OUT_OF_RANGE: Final = 1
    UNKNOWN_TOPIC_OR_PARTITION: Final = 3
    MESSAGE_TOO_LARGE: Final = 10
    INVALID_TOPIC: Final = 17
    TOPIC_ALREADY_EXISTS: Final = 36
    INVALID_PARTITIONS: Final = 37
    INVALID_CONFIG: Final = 40
    INVALID_REQUEST: Final = 42


class Record(NamedTuple):
    """One record, to be produced or consumed; without an offset when it is yet to be produced."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The record in the form of the contract."""
        return {
            "key": _text(self.key),
            "value": _text(self.value),
            "headers": [[name, _text(value)] for name, value in self.headers],
            "timestamp_ms": self.timestamp_ms,
        }


def record_of(fields: Mapping[str, Any]) -> Record:
    """What a program consumed."""
    return Record(
        key=_bytes(fields["key"]),
        value=_bytes(fields["value"]),
        headers=tuple((name, _bytes(value)) for name, value in fields["headers"]),
        timestamp_ms=fields["timestamp_ms"],
        offset=fields["offset"],
    )


class ClientRefused(Exception):
    """The client's own error; `code` is the broker's number, None where the client refused."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKind:
    """One client: how its program is started, and what the client has to offer."""

    name: str
    codecs: tuple[str, ...] = CODECS
    lacks: frozenset[str] = frozenset()
    is_idempotent_by_default: bool = False

    @property
    def runtimes(self) -> tuple[str, ...]:
        return RUNTIMES.get(self.name, ())

    def command(self) -> list[str]:
        return client_command(self.name, sources=PROGRAMS, cache=PEERS)

    def can(self, *abilities: str) -> bool:
        return not self.lacks & set(abilities)


class Client:
    """A running program; one request after the other."""

    def __init__(self, command: Sequence[str], *, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def request(self, do: str, **given: object) -> Any:
        """Send a command and return the answer; ClientRefused for an error of its client."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
        self._process.stdin.flush()
        too_late = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        too_late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            too_late.cancel()
        assert line, f"{do}: the program ended\n{self._log_tail()}"
        answer = json.loads(line)
        if "error" in answer:
            refused = ClientRefused(answer["error"]["code"], answer["error"]["text"])
            refused.add_note(self._log_tail())
            raise refused
        return answer["ok"]

    def close(self) -> None:
        """End it, and wait for the end."""
        self._process.communicate(timeout=ANSWER_TIMEOUT_S)
        assert self._process.returncode == 0, self._log_tail()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


class ConnectedClient:
    """A client connected to a broker, with the commands of the contract."""

    def __init__(self, client: Client, kind: ClientKind, servers: str) -> None:
        self.kind: Final = kind
        self._client = client
        self.servers: Final = servers

    def request(self, do: str, **given: object) -> Any:
        return self._client.request(do, servers=self.servers, **given)

    def create_topic(
        self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        self.request(
            "create_topic", topic=topic, partitions=partitions, configs=dict(configs or {})
        )
        return topic

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool | None = None,
    ) -> list[int]:
        offsets: list[int] = self.request(
            "produce",
            topic=topic,
            partition=partition,
            records=[record.to_json() for record in records],
            codec=codec,
            acks=acks,
            idempotent=idempotent,
        )
        return offsets

    def consume(
        self, topic: str, count: int, *, partition: int = 0, at: str = "beginning", **place: int
    ) -> list[Record]:
        found = self.request(
            "consume",
            topic=topic,
            partition=partition,
            count=count,
            **{"from": {"at": at, **place}},
        )
        return [record_of(one) for one in found]

    def offsets(self, topic: str, *, partition: int = 0, timestamp_ms: int = 0) -> dict[str, int]:
        answer: dict[str, int] = self.request(
            "offsets", topic=topic, partition=partition, timestamp_ms=timestamp_ms
        )
        return answer

    def configs(self, kind: str, name: str) -> dict[str, dict[str, Any]]:
        answer: dict[str, dict[str, Any]] = self.request("describe_configs", kind=kind, name=name)
        return answer

    def alter_configs(
        self, kind: str, name: str, given: Mapping[str, str], *, remove: Sequence[str] = ()
    ) -> None:
        self.request("alter_configs", kind=kind, name=name, set=dict(given), remove=list(remove))


def new_topic_name(about: str) -> str:
    """A name that no other test of this process has."""
    return f"{about}-{next(_names)}"


def some_records(count: int, *, timed: bool = True) -> list[Record]:
    """Records that every client can send and every codec makes smaller."""
    return [
        Record(
            key=b"key %d" % n,
            value=b"value %d " % n * 20,
            timestamp_ms=START_MS + n * 1000 if timed else None,
        )
        for n in range(count)
    ]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


ADMINISTRATION: Final = frozenset({"create", "delete", "partitions", "configs", "delete_records"})

KINDS: Final = (
    ClientKind(
        name="kcat",
        # One header for all records of a run, no empty values beside missing ones.
        lacks=ADMINISTRATION | {"timestamps", "rich_records", "reports_offsets", "quiet_describe"},
    ),
    ClientKind(name="confluent-kafka"),
    ClientKind(name="kafka-python", is_idempotent_by_default=True),
    # It knows only the request that replaces all configs.
    ClientKind(name="aiokafka", lacks=frozenset({"incremental_configs", "quiet_describe"})),
    ClientKind(name="java", is_idempotent_by_default=True),
    ClientKind(name="franz-go", is_idempotent_by_default=True),
    # It only subscribes, and where an offset is out of range it begins anew without a word.
    ClientKind(name="kafkajs", lacks=frozenset({"reports_range", "incremental_configs"})),
)


def kinds_with(*abilities: str) -> list[ClientKind]:
    """The clients that have all these abilities."""
    return [kind for kind in KINDS if kind.can(*abilities)]


def for_clients(*abilities: str, without: str | None = None) -> pytest.MarkDecorator:
    """Run a test once with every client that has the abilities and lacks the one `without`."""
    kinds = [kind for kind in kinds_with(*abilities) if without is None or not kind.can(without)]
    chosen = [pytest.param(kind, id=kind.name) for kind in kinds]
    return pytest.mark.parametrize("client", chosen, indirect=True)


def for_clients_and_codecs(*abilities: str) -> pytest.MarkDecorator:
    """Run a test with every codec that a client has."""
    chosen = [
        pytest.param(kind, codec, id=f"{kind.name}-{codec}")
        for kind in kinds_with(*abilities)
        for codec in kind.codecs
    ]
    return pytest.mark.parametrize(("client", "codec"), chosen, indirect=["client"])
