"""The streaming source's offset: the connector's JSON, and in addition what a replay needs.

A checkpoint must contain more than "next offset per partition". Batch 0 starts where
`startingOffsets` pointed when the query was new; a partition that was added starts at its
earliest offset; after lost data a partition continues at another offset. Asking the broker again
when a batch is replayed would give other answers, so the end of a batch contains where those
partitions began (`begins`). It also contains topic ids, because a topic that was deleted and
created again has the same name and other records.

The connector's parser takes an extra topic with no partitions and drops it, and refuses every other
extra. So all of this travels in the *name* of one reserved key whose value is an empty object:
`{"topicA":{"0":23},"#millstream {...}":{}}`. No topic can have that name ('#' and ' ' are not
allowed). A query can move between the connectors with its checkpoint, in both directions.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.errors import OffsetsInvalid
from millstream.pipelines.offsets_json import (
    Document,
    document_from_offsets,
    offsets_from_document,
)

RESERVED_PREFIX: Final = "#millstream "
"""Begins the reserved key; the rest of the key is JSON."""
RESERVED_VERSION: Final = 1
"""Raised when a reader must not ignore what it does not know."""

_EXAMPLE: Final = '{"topicA":{"0":23},"#millstream {\\"v\\":1}":{}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """Next offset to read of every partition."""

    positions: Mapping[TopicPartition, Offset]
    begins: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """Where the batch that ends here began, where that is not the end of the batch before."""
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    is_initial: bool = False
    """The start of a new query: the end of the first batch repeats these positions as `begins`."""

    @property
    def has_extras(self) -> bool:
        return bool(self.begins or self.topic_ids or self.is_initial)


def document_from_source_offset(offset: SourceOffset) -> Document:
    """What `initialOffset` and `latestOffset` return to Spark."""
    document = document_from_offsets(offset.positions)
    if offset.has_extras:
        document[RESERVED_PREFIX + _extras_text(offset)] = {}
    return document


def source_offset_from_document(document: Mapping[str, object]) -> SourceOffset:
    """Parse what Spark passes back, written by us or by the connector."""
    reserved = [key for key in document if key.startswith(RESERVED_PREFIX)]
    named = {key: value for key, value in document.items() if key not in reserved}
    positions = offsets_from_document(named)
    if not reserved:
        return SourceOffset(positions=positions)
    if len(reserved) > 1:
        raise OffsetsInvalid("more than one reserved key", reserved[1], _EXAMPLE)
    return _with_extras(positions, reserved[0])


def _extras_text(offset: SourceOffset) -> str:
    extras: dict[str, object] = {"v": RESERVED_VERSION}
    if offset.is_initial:
        extras["initial"] = True
    if offset.begins:
        extras["begins"] = document_from_offsets(offset.begins)
    if offset.topic_ids:
        extras["ids"] = {
            name: text_from_topic_id(topic_id)
            for name, topic_id in sorted(offset.topic_ids.items())
        }
    return json.dumps(extras, separators=(",", ":"))


def _with_extras(positions: Mapping[TopicPartition, Offset], key: str) -> SourceOffset:
    try:
        extras = json.loads(key.removeprefix(RESERVED_PREFIX))
        version, begins, ids = extras["v"], extras.get("begins", {}), extras.get("ids", {})
        topic_ids = {str(name): topic_id_from_text(text) for name, text in ids.items()}
        resolved = offsets_from_document(begins)
        is_initial = extras.get("initial", False) is True
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OffsetsInvalid(f"malformed reserved key ({error!r})", key, _EXAMPLE) from None
    if version != RESERVED_VERSION:
        reason = f"reserved key of version {version}, written by a newer Millstream"
        raise OffsetsInvalid(reason, key, _EXAMPLE)
    return SourceOffset(
        positions=positions, begins=resolved, topic_ids=topic_ids, is_initial=is_initial
    )


def text_from_topic_id(topic_id: TopicId) -> str:
    """As Kafka's tools print it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


def topic_id_from_text(text: str) -> TopicId:
    """Raises ValueError for an invalid one."""
    try:
        return TopicId(UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True)))
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"{text!r} is not a topic id") from error
