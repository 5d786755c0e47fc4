"""Our Java program with Kafka's message classes (java/WireProgram.java), for tests."""

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from kits.interop.client_kit import Client
from kits.interop.client_targets import PEERS
from kits.paths import PROGRAMS
from millstream.testing.peers.java_programs import java_classes, java_command

SOURCE: Final = PROGRAMS / "java" / "WireProgram.java"


class KafkaError(NamedTuple):
    """One code of `org.apache.kafka.common.protocol.Errors`."""

    name: str
    code: int
    is_retriable: bool


class KafkaApi(NamedTuple):
    """One API of `org.apache.kafka.common.protocol.ApiKeys`."""

    name: str
    key: int
    versions: range
    request_headers: dict[int, int]
    """Version of the header by version of the API."""
    response_headers: dict[int, int]


class Outcome(NamedTuple):
    """The result for one message: bytes and fields, or the reason why Kafka rejects it."""

    data: bytes | None
    fields: dict[str, Any] | None
    refused: str


class WireProgram:
    """Kafka's message classes by name ("FetchRequest") and version."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def errors(self) -> list[KafkaError]:
        return [KafkaError(**one) for one in self._client.request("errors")]

    def apis(self) -> list[KafkaApi]:
        return [
            KafkaApi(
                one["name"],
                one["key"],
                range(one["oldest"], one["latest"] + 1),
                {int(version): header for version, header in one["request_headers"].items()},
                {int(version): header for version, header in one["response_headers"].items()},
            )
            for one in self._client.request("apis")
        ]

    def write(self, name: str, version: int, messages: Iterable[Any]) -> list[Outcome]:
        """Messages in Kafka's JSON, encoded."""
        return self._many("write", name, version, list(messages))

    def write_fresh(self, name: str, version: int, outlines: Iterable[Any]) -> list[Outcome]:
        """Messages of Kafka's defaults, encoded. An outline says which arrays have an item."""
        return self._many("write_fresh", name, version, list(outlines))

    def read(self, name: str, version: int, bodies: Iterable[bytes]) -> list[Outcome]:
        """Bytes, decoded, and encoded once more."""
        given = [base64.b64encode(body).decode() for body in bodies]
        return self._many("read", name, version, given)

    def _many(self, do: str, name: str, version: int, items: list[Any]) -> list[Outcome]:
        answers = self._client.request(do, message=name, version=version, items=items)
        assert len(answers) == len(items)
        return [_outcome(answer) for answer in answers]


def _outcome(answer: dict[str, Any]) -> Outcome:
    data = answer.get("data")
    return Outcome(
        None if data is None else base64.b64decode(data),
        answer.get("fields"),
        answer.get("refused", ""),
    )


@contextmanager
def wire_program(jars: Path, log: Path) -> Iterator[WireProgram]:
    """The running program, compiled when it is first needed."""
    folder = PROGRAMS / "clients" / "java"
    sources = [SOURCE, *(folder / "contract").glob("*.java")]
    classes = java_classes(PEERS, "wire-program", sources, jars)
    logging = folder / "log4j2.properties"
    client = Client(
        java_command("WireProgram", classes=classes, jars=jars, logging=logging), log=log
    )
    try:
        yield WireProgram(client)
    finally:
        client.close()
