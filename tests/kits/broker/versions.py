"""The versions in which an API is served, by its handler's module."""

from types import ModuleType

from millstream.broker.requests.registry import SERVED


def versions_of(handler: ModuleType) -> range:
    """As the registry has them."""
    name = handler.__name__.rpartition(".")[2]
    (versions,) = [one.versions for one in SERVED.values() if one.module == name]
    return versions
