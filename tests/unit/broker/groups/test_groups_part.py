"""The groups' part of a broker: when its coordinator is there, and when it is not any more."""

import asyncio

from kits.groups.group_handlers_kit import GroupDesk
from millstream.testing.sim import virtual_loop


def test_leadership_that_comes_while_the_broker_stops_begins_nothing() -> None:
    """I-42. The coordinator is made when it is first needed, and that may be after the stop."""

    async def story() -> None:
        desk = GroupDesk()
        assert desk.groups.loaded is None
        desk.groups.stop()
        await desk.groups.topic()
        coordinator = desk.groups.coordinator.shards
        for _ in range(50):
            await asyncio.sleep(0)
        assert not coordinator.active

    virtual_loop.run(story)
