"""Whom a broker asks for metadata while the coordination service does not reach it. Pure.

Nobody tells it who the controller is by now. So all whom it has met are asked in turn, and who is
not the controller points to the one who is.
"""

from collections.abc import Mapping, Sequence

from millstream.controller.image import BrokerImage, Endpoint
from millstream.model.ids import BrokerId


class ControllerSearch:
    """For one broker; what it has met is kept as long as its process lives."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._met: dict[BrokerId, BrokerImage] = {}
        self._pointed_to: BrokerImage | None = None
        self._turn = 0

    def met(self, brokers: Mapping[BrokerId, BrokerImage]) -> None:
        """Who is gone, and has no endpoints in later images, may be back when he is asked."""
        self._met.update({one: broker for one, broker in brokers.items() if broker.endpoints})

    def met_one(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """In the coordination service, before any image had it."""
        self._met[broker_id] = BrokerImage(broker_id, tuple(endpoints))

    def pointed_to(self, broker_id: BrokerId, endpoints: Sequence[Endpoint]) -> None:
        """By somebody who was asked: is the next to be asked, once."""
        self._pointed_to = BrokerImage(broker_id, tuple(endpoints))

    def next(self, listener: str) -> Endpoint | None:
        """Who is asked now; None where nobody else is known."""
        pointed_to, self._pointed_to = self._pointed_to, None
        if pointed_to is not None and pointed_to.broker_id != self._broker_id:
            endpoint = pointed_to.endpoint(listener)
            if endpoint is not None:
                return endpoint
        others = [self._met[one] for one in sorted(self._met) if one != self._broker_id]
        places = [place for one in others if (place := one.endpoint(listener)) is not None]
        if not places:
            return None
        self._turn += 1
        return places[self._turn % len(places)]
