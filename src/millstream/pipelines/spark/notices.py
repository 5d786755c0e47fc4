"""What the user should know and that stops nothing: Python warnings on the driver.

Spark runs the driver's part of a Python source in processes of its own. What these write to
standard error appears where the JVM writes its own, in the terminal of the driver.
"""

from collections.abc import Iterable, Mapping
from typing import Final
from warnings import warn

from millstream.client.setting_keys import CLIENT_KEYS
from millstream.client.settings import ClientSettings
from millstream.model.config.nearest import hint
from millstream.pipelines.option_rules import CLIENT_PREFIX
from millstream.pipelines.options import ReadOptions

_WITHOUT_USE: Final = frozenset({"group.id"})
"""Settings that a query moved from the connector may have, and that reading needs no more."""


class MillstreamWarning(UserWarning):
    """Something is surely not as it was meant."""


def client_settings(options: ReadOptions) -> dict[str, str]:
    """For the client; raises ConfigInvalid before anything is connected."""
    settings = {**options.client_settings, "isolation.level": options.isolation.value}
    ClientSettings.from_configs(settings)
    return settings


def tell(options: ReadOptions) -> None:
    """Of the options of a query."""
    tell_all([*options.warnings, *_unknown_settings(options.client_settings)])


def tell_all(texts: Iterable[str]) -> None:
    """Python shows each text once in a process."""
    for text in texts:
        warn(text, MillstreamWarning, stacklevel=3)


def _unknown_settings(settings: Mapping[str, str]) -> list[str]:
    unknown = {name for name, _ in ClientSettings.from_configs(settings).others} - _WITHOUT_USE
    return [
        f"option '{CLIENT_PREFIX}{name}' is ignored: the client has no setting {name}"
        f"{hint(name, CLIENT_KEYS)}"
        for name in sorted(unknown)
    ]
