"""There are no transactions yet: a client gets an error at once, and not after a time-out."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer

from millstream.testing.broker_thread import BrokerThread

TIMEOUT_S = 60.0
"""Of what clients may do; all of them would use it up if they asked again and again."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.bootstrap_servers


def test_confluent_fails_for_good_and_says_why(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "mine", "log_level": 0})
    with pytest.raises(KafkaException, match="transactions are not supported yet") as told:
        producer.init_transactions(TIMEOUT_S)
    error = told.value.args[0]
    assert error.fatal()
    assert not error.retriable()


def test_aiokafka_fails(servers: str) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="mine")
        try:
            with pytest.raises(AioKafkaError, match="ClusterAuthorizationFailed"):
                await asyncio.wait_for(producer.start(), TIMEOUT_S)
        finally:
            await producer.stop()

    asyncio.run(main())
