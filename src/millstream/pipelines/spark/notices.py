"""Python warnings on the driver, for what the user should know and does not stop the query.

Spark runs the driver's part of a Python source in processes of its own. Their standard error
appears where the JVM writes its own, in the terminal of the driver.
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
"""Settings that a query moved from the connector may have, and that are not needed here."""


class MillstreamWarning(UserWarning):
    """Something that is probably unintended."""


def client_settings(options: ReadOptions) -> dict[str, str]:
    """The settings of the client; raises ConfigInvalid before any connection is made."""
    settings = {**options.client_settings, "isolation.level": options.isolation.value}
    ClientSettings.from_configs(settings)
    return settings


def warn_of_options(options: ReadOptions) -> None:
    """Issue the warnings about the options of a query."""
    warn_all([*options.warnings, *_unknown_settings(options.client_settings)])


def warn_all(texts: Iterable[str]) -> None:
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
