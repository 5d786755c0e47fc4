"""Apache Kafka's command-line tools, run one after the other in the Java client's process."""

import base64
from collections.abc import Mapping
from typing import Final, NamedTuple

from kits.interop.client_kit import ConnectedClient

MAIN_CLASSES: Final[Mapping[str, str]] = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
"""By the name of the script that starts them."""


class ToolRun(NamedTuple):
    """What a tool left when it ended."""

    exit_code: int
    raw: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.raw.decode()


# Their address comes after the name of the command.
TAKE_ADDRESS_LAST: Final = frozenset({"kafka-cluster"})


def run_script(
    java: ConnectedClient, script: str, *arguments: str, data: bytes = b"", must_work: bool = True
) -> ToolRun:
    """Run the tool behind a script with the broker's address given."""
    address = ["--bootstrap-server", java.servers]
    is_last = script in TAKE_ADDRESS_LAST
    done = java.request(
        "tool",
        main=MAIN_CLASSES[script],
        arguments=[*arguments, *address] if is_last else [*address, *arguments],
        input=base64.b64encode(data).decode(),
    )
    run = ToolRun(done["exit"], base64.b64decode(done["out"]), done["err"])
    if must_work:
        assert run.exit_code == 0, f"{script} {arguments}: {run}"
    return run
