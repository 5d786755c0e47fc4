"""Settings that ask for more replicas than a broker on its own can give."""

from collections.abc import Iterator
from typing import Final

from millstream.broker.configs.broker_configs import BrokerConfigs

_CONSEQUENCES: Final = {  # those of transactions come with them
    "default.replication.factor": "a topic that is created without a factor is refused",
    "min.insync.replicas": "records with acks=all are refused",
    "offsets.topic.replication.factor": "consumer groups wait for a topic that cannot be created",
}


def problems(configs: BrokerConfigs) -> Iterator[str]:
    """One sentence for each setting that does not fit; Kafka's own defaults are not counted."""
    for name, consequence in _CONSEQUENCES.items():
        if configs.is_set(name) and configs.get_int(name) > 1:
            yield f"{name} is {configs.get_int(name)}, there is one broker: {consequence}"
