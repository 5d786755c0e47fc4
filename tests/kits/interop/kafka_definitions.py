"""Kafka's own message definitions, as they ship in its client jar."""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from millstream.testing.peers.kafka import KAFKA_VERSION
from millstream.wire.fields import NEVER, NO_UUID, Kind, versions_from

FOLDER: Final = "common/message/"
EMPTY_DEFAULTS: Final[Mapping[Kind, Any]] = {
    Kind.BOOLEAN: False,
    Kind.FLOAT64: 0.0,
    Kind.UUID: NO_UUID,
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.RECORDS: None,
}
"""What a field holds when its definition names no default. Numbers hold zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One message, or one of its structs."""

    name: str
    definition: Mapping[str, Any]
    commons: Mapping[str, Any]
    """Structs that several fields of the message share."""

    @property
    def key(self) -> int | None:
        """The API key; None for messages that are not requests or responses."""
        number: int | None = self.definition.get("apiKey")
        return number

    @property
    def versions(self) -> range:
        return versions_of(self.definition["validVersions"])

    @property
    def flexible(self) -> range:
        return versions_of(self.definition["flexibleVersions"])

    @property
    def fields(self) -> "list[FieldDefinition]":
        return [
            FieldDefinition(definition=one, commons=self.commons)
            for one in self.definition["fields"]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDefinition:
    """One field."""

    definition: Mapping[str, Any]
    commons: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name in our spelling: `ThrottleTimeMs` is throttle_time_ms."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.definition["name"]).lower()

    @property
    def item_type(self) -> str:
        """Type of the value, or of an array's items."""
        text: str = self.definition["type"]
        return text.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return bool(self.definition["type"].startswith("[]"))

    @property
    def item_kind(self) -> Kind:
        is_struct = self.item_type[0].isupper()
        return Kind.STRUCT if is_struct else Kind(self.item_type)

    @property
    def kind(self) -> Kind:
        return Kind.ARRAY if self.is_array else self.item_kind

    @property
    def versions(self) -> range:
        return versions_of(self.definition["versions"])

    @property
    def nullable(self) -> range:
        return versions_of(self.definition.get("nullableVersions", "none"))

    @property
    def tagged(self) -> range:
        return versions_of(self.definition.get("taggedVersions", "none"))

    @property
    def tag(self) -> int | None:
        number: int | None = self.definition.get("tag")
        return number

    @property
    def ignorable(self) -> bool:
        return bool(self.definition.get("ignorable", False))

    @property
    def has_compact_form(self) -> bool:
        """False: its length has the non-compact form in flexible versions too."""
        return bool(self.definition.get("flexibleVersions") != "none")

    @property
    def default(self) -> Any:
        """The value; a word for those that are made afresh."""
        text = self.definition.get("default")
        if text == "null":
            return None
        if self.kind in (Kind.ARRAY, Kind.STRUCT):
            return f"fresh {self.kind}"
        if text is None or text == "":
            return EMPTY_DEFAULTS.get(self.kind, 0)
        if self.kind is Kind.BOOLEAN:
            return {True: True, False: False, "true": True, "false": False}[text]
        if self.kind is Kind.STRING:
            return text
        return float(text) if self.kind is Kind.FLOAT64 else int(str(text), 0)

    @property
    def struct(self) -> Definition | None:
        """Of the value or the items, when these are structs."""
        if self.item_kind is not Kind.STRUCT:
            return None
        definition = (
            self.definition if "fields" in self.definition else self.commons[self.item_type]
        )
        return Definition(name=self.item_type, definition=definition, commons=self.commons)


def versions_of(text: str) -> range:
    return NEVER if text == "none" else versions_from(text)


@cache
def definitions(jars: Path) -> Mapping[str, Definition]:
    """All definitions that Kafka ships, by name: requests, responses, headers, data."""
    return {one.name: one for one in _definitions(jars)}


def _definitions(jars: Path) -> Iterator[Definition]:
    with zipfile.ZipFile(jars / f"kafka-clients-{KAFKA_VERSION}.jar") as jar:
        for path in jar.namelist():
            if path.startswith(FOLDER) and path.endswith(".json"):
                definition = json.loads(_without_comments(jar.read(path).decode()))
                commons = {one["name"]: one for one in definition.get("commonStructs", ())}
                yield Definition(name=definition["name"], definition=definition, commons=commons)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
