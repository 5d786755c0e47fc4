"""What the driver believes of the cluster, and how often it asks before it does."""

from collections.abc import Sequence

import pytest

from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError, RequestRefused
from millstream.client.retries import Deadline
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.data_loss import ClusterView
from millstream.pipelines.options import stream_read_options
from millstream.pipelines.source_offset import SourceOffset, topic_id_from_text
from millstream.pipelines.spark.metadata_lookup import MetadataLookup
from millstream.wire.errors import ErrorCode

PARTITION = TopicPartition("t", 0)
OLD, NEW = (topic_id_from_text(letter * 21 + "A") for letter in "BC")
START = SourceOffset(positions={PARTITION: Offset(5)}, topic_ids={"t": OLD})

Answer = ClusterView | ClientError


def view(latest: int | None, topic_id: TopicId = OLD) -> ClusterView:
    ends = {} if latest is None else {PARTITION: Offset(latest)}
    return ClusterView(
        earliest=dict.fromkeys(ends, Offset(0)), latest=ends, topic_ids={"t": topic_id}
    )


class ScriptedLook(MetadataLookup):
    """Brokers that say one thing after another; nothing is connected."""

    def __init__(self, answers: Sequence[Answer], attempts: int = 3) -> None:
        options = {
            "kafka.bootstrap.servers": "localhost:1",
            "subscribe": "t",
            "fetchOffset.numRetries": str(attempts),
            "fetchOffset.retryIntervalMs": "1",
        }
        super().__init__(stream_read_options(options).read)
        self._answers = iter(answers)
        self.asked = 0

    async def _viewed(self, cluster: Cluster, deadline: Deadline) -> ClusterView:
        del cluster, deadline
        self.asked += 1
        answer = next(self._answers)
        if isinstance(answer, ClientError):
            raise answer
        return answer


@pytest.mark.parametrize(
    "doubtful",
    [view(None), view(4), view(9, NEW), RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "t-0")],
    ids=["gone", "behind", "another topic", "refused"],
)
def test_doubtful_answer_is_asked_for_again(doubtful: Answer) -> None:
    """A broker that was just elected, or has not heard the news, must not stop a query."""
    look = ScriptedLook([doubtful, view(7)])
    assert look.view(START).latest == {PARTITION: 7}
    assert look.asked == 2


def test_what_is_said_every_time_is_believed() -> None:
    look = ScriptedLook([view(None)] * 4)
    assert look.view(START).latest == {}
    assert look.asked == 3
    refused = RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "t-0")
    with pytest.raises(RequestRefused):
        ScriptedLook([refused] * 4, attempts=2).view(START)


def test_good_answer_is_asked_for_once() -> None:
    look = ScriptedLook([view(5)])
    look.view(START)
    assert look.asked == 1
