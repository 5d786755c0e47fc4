"""A member of a group, as a program: reads a number of values, prints and commits them.

A process of its own for each: some clients warn of their own imports, which our tests do not allow.
"""

import asyncio
import sys

TOPIC = "clicks"
GROUP = "readers"
WAIT_S = 30.0


def confluent(servers: str, count: int, **settings: str) -> list[str]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([TOPIC])
    values: list[str] = []
    try:
        while len(values) < count:
            found = consumer.consume(count - len(values), timeout=WAIT_S)
            assert found, f"only {len(values)} of {count} records came"
            for one in found:
                assert one.error() is None, one.error()
                values.append((one.value() or b"").decode())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def confluent_consumer_protocol(servers: str, count: int) -> list[str]:
    return confluent(servers, count, **{"group.protocol": "consumer"})


def kafka_python(servers: str, count: int) -> list[str]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(WAIT_S * 1000),
        max_poll_records=count,
    )
    values: list[str] = []
    try:
        for record in consumer:
            values.append(record.value.decode())
            if len(values) == count:
                break
        assert len(values) == count, f"only {len(values)} of {count} records came"
        consumer.commit()
    finally:
        consumer.close()
    return values


def aio_kafka(servers: str, count: int) -> list[str]:
    from aiokafka import AIOKafkaConsumer

    async def main() -> list[str]:
        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=servers,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=count,
        )
        await consumer.start()
        values: list[str] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while len(values) < count:
                    record = await consumer.getone()
                    values.append((record.value or b"").decode())
            await consumer.commit()
        finally:
            await consumer.stop()
        return values

    return asyncio.run(main())


CLIENTS = {
    one.__name__: one for one in (confluent, confluent_consumer_protocol, kafka_python, aio_kafka)
}

if __name__ == "__main__":
    print(*CLIENTS[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
