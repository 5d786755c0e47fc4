"""Listeners and advertised listeners: what the settings say, as values."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.model.config.errors import InvalidConfig

UNSPECIFIED_HOSTS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised here, not bound
PLAINTEXT: Final = "PLAINTEXT"


class ListenerAddress(NamedTuple):
    """One entry of `listeners` or `advertised.listeners`."""

    name: str
    host: str
    """Empty in `listeners`: every address of the machine; in what is advertised: the address that
    the client itself came to."""
    port: int

    @property
    def place(self) -> str:
        """`host:port`; brackets tell the colons of an IPv6 address from the port's."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As the settings have it."""
        return f"{self.name}://{self.place}"


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


def advertised(
    bound: Sequence[ListenerAddress], configured: Sequence[ListenerAddress]
) -> list[ListenerAddress]:
    """What clients are told for each listener that is bound.

    Without a configured address a listener on one address advertises that; one on all addresses
    tells each client the address it came to, which it can reach, whatever it is called from there.
    """
    given: Mapping[str, ListenerAddress] = {one.name: one for one in configured}
    unknown = given.keys() - {one.name for one in bound}
    if unknown:
        raise InvalidConfig(f"advertised.listeners: no listener is called {sorted(unknown)[0]}")
    result = []
    for one in bound:
        told = given.get(one.name, one)
        if told.host in UNSPECIFIED_HOSTS and one.name in given and told.host:
            raise InvalidConfig(f"advertised.listeners: {told.host} is no address to connect to")
        host = "" if told.host in UNSPECIFIED_HOSTS else told.host
        result.append(ListenerAddress(one.name, host, told.port or one.port))
    return result


def check_protocols(listeners: Sequence[ListenerAddress], protocol_map: Mapping[str, str]) -> None:
    """Every listener needs a security protocol that this broker speaks."""
    for one in listeners:
        protocol = protocol_map.get(one.name, one.name).upper()
        if protocol != PLAINTEXT:
            raise InvalidConfig(
                f"listeners: {one.name} has security protocol {protocol}; only PLAINTEXT is there"
            )
