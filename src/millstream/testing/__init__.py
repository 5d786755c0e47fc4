"""The test kit: a broker as a fixture, simulated twins of the seams, virtual time, crash states.

Shipped with the package, imported by nothing in it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.broker_thread import BrokerThread as BrokerThread
    from millstream.testing.fixtures import broker as broker

__all__ = ["BrokerThread", "broker"]


def __getattr__(name: str) -> Any:
    # Not imported above: the simulators are used without pytest and without a broker.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from millstream.runtime.garbage import collector_paused

    with collector_paused():
        module = "fixtures" if name == "broker" else "broker_thread"
        found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
