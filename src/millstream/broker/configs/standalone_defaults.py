"""Settings that require more replicas than a standalone broker can have."""

from collections.abc import Iterator
from typing import Final

from millstream.broker.configs.broker_configs import BrokerConfigs

_CONSEQUENCES: Final = {  # settings of transactions: when they are supported
    "default.replication.factor": "a topic that is created without a factor is refused",
    "min.insync.replicas": "records with acks=all are refused",
    "offsets.topic.replication.factor": "consumer groups wait for a topic that cannot be created",
}


def problems(configs: BrokerConfigs) -> Iterator[str]:
    """One sentence for each setting that does not fit; Kafka's defaults are accepted."""
    for name, consequence in _CONSEQUENCES.items():
        if configs.is_set(name) and configs.get_int(name) > 1:
            value = configs.get_int(name)
            yield f"{name} is {value}, but there is only one broker: {consequence}"
