"""Listeners and advertised listeners: what the settings say, as values."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.model.config.errors import InvalidConfig

UNSPECIFIED_HOSTS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised here, not bound
PLAINTEXT: Final = "PLAINTEXT"
LISTENER_FOR_BROKERS: Final = "inter.broker.listener.name"


class ListenerAddress(NamedTuple):
    """One entry of `listeners` or `advertised.listeners`."""

    name: str
    host: str
    """Empty in `listeners`: every address of the machine; when advertised: the address that the
    client connected to."""
    port: int

    @property
    def host_port(self) -> str:
        """`host:port`; in brackets an IPv6 address, whose colons are not the port's."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As the settings have it."""
        return f"{self.name}://{self.host_port}"


def parse_listeners(key: str, entries: Sequence[str]) -> list[ListenerAddress]:
    """`NAME://host:port` entries; raises InvalidConfig that names the entry."""
    found: list[ListenerAddress] = []
    for entry in entries:
        name, separator, address = entry.strip().partition("://")
        host, colon, port_text = address.rpartition(":")
        if not separator or not colon or not name:
            raise InvalidConfig(f"{key}: {entry!r} is not NAME://host:port")
        if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
            raise InvalidConfig(f"{key}: {entry!r} has no port between 0 and 65535")
        found.append(ListenerAddress(name.upper(), host.strip("[]"), int(port_text)))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise InvalidConfig(f"{key}: a listener name is given twice: {', '.join(entries)}")
    return found


def advertised_listeners(
    bound: Sequence[ListenerAddress], configured: Sequence[ListenerAddress]
) -> list[ListenerAddress]:
    """The addresses that clients get, for each listener that is bound.

    Without a configured address a listener on one address advertises that; one on all addresses
    advertises to each client the address it connected to, which that client can reach.
    """
    given: Mapping[str, ListenerAddress] = {one.name: one for one in configured}
    unknown = given.keys() - {one.name for one in bound}
    if unknown:
        raise InvalidConfig(f"advertised.listeners: no listener is called {sorted(unknown)[0]}")
    result = []
    for one in bound:
        address = given.get(one.name, one)
        if address.host in UNSPECIFIED_HOSTS and one.name in given and address.host:
            raise InvalidConfig(f"advertised.listeners: clients cannot connect to {address.host}")
        host = "" if address.host in UNSPECIFIED_HOSTS else address.host
        result.append(ListenerAddress(one.name, host, address.port or one.port))
    return result


def check_protocols(listeners: Sequence[ListenerAddress], protocol_map: Mapping[str, str]) -> None:
    """Every listener needs a security protocol that this broker supports."""
    for one in listeners:
        protocol = protocol_map.get(one.name, one.name).upper()
        if protocol != PLAINTEXT:
            raise InvalidConfig(
                f"listeners: {one.name} has security protocol {protocol}; "
                "only PLAINTEXT is supported"
            )


def check_listener_for_brokers(listeners: Sequence[ListenerAddress], name: str) -> None:
    """`inter.broker.listener.name` is that of a listener, or empty."""
    if name and name.upper() not in {one.name for one in listeners}:
        raise InvalidConfig(f"{LISTENER_FOR_BROKERS}: there is no listener {name.upper()}")
