"""Whatever bytes a client or a leader sends: taken whole, or refused with a typed error."""

from dataclasses import replace

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kits.storage.log_stories import NOW, Story, batch_of, of_producer
from millstream.kernels.compression import Codec
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch
from millstream.storage.config import FOREVER, LogConfig, TimestampType
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker

CONFIGS: list[LogConfig] = [
    SMALL_SEGMENTS,
    replace(SMALL_SEGMENTS, timestamp_after_max_ms=FOREVER, compression=Codec.ZSTD),
    replace(SMALL_SEGMENTS, timestamp_type=TimestampType.LOG_APPEND_TIME, cleanup_compact=True),
]
BATCHES: list[bytes] = [
    bytes(batch_of(b"a", None, b"")),
    bytes(batch_of(b"a", b"b") + batch_of(b"c")),
    bytes(batch_of(b"a", spec=of_producer(1, 0, txn=True))),
    bytes(build_marker(of_producer(1, 0), is_commit=False)),
    *(
        bytes(build_batch([(b"k", b"v" * 30)] * 3, BatchSpec(codec=codec, timestamp_ms=NOW)))
        for codec in Codec
    ),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytearray:
    """A valid batch with some fields overwritten, mostly with a CRC that fits again."""
    raw = bytearray(draw(st.sampled_from(BATCHES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        part = draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(part)] = part[: len(raw) - at]
    if draw(st.booleans()):
        raw = raw[: draw(st.integers(0, len(raw)))]
    if draw(st.integers(0, 3)) and len(raw) > 21:
        raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return raw


def sound(story: Story) -> None:
    """The log reads back in full, by offset, and recovers to the same."""
    before = story.records()
    offsets = [record.offset for record in before]
    assert offsets == sorted(set(offsets))
    end = story.log.log_end
    story.kill()
    assert story.log.log_end == end
    assert story.records() == before


@given(raw=damaged(), config=st.sampled_from(CONFIGS))
def test_a_leader_takes_or_refuses_any_bytes(raw: bytearray, config: LogConfig) -> None:
    """I-34: no bytes of a client raise anything but an operating error, or change a refused log."""
    story = Story(config=config)
    story.put(b"before")
    before = story.facts()
    try:
        story.log.append_as_leader(raw, leader_epoch=LeaderEpoch(0))
    except OperatingError:
        assert story.facts() == before
    sound(story)


@given(raw=damaged())
def test_a_follower_takes_or_refuses_any_bytes(raw: bytearray) -> None:
    """A broken leader, or the network between, must not break its followers."""
    story = Story()
    before = story.facts()
    try:
        story.log.append_as_follower(raw)
    except OperatingError:
        assert story.facts() == before
        sound(story)
        return
    end = story.log.log_end
    story.kill()
    assert story.log.log_end == end
