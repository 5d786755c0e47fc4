"""`millstream up --config KEY=VALUE`, and what a start adds to the settings of its brokers.

Precedence: `--config`, the environment, the broker's server.properties, and then what `up`
chooses: a port for metrics, and a quiet log on a terminal. Overrides are passed to a broker through
its environment and are not stored.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from millstream.cli.brokers_on_disk import BrokerDirectory
from millstream.cli.supervisor import Launch
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.model.config.errors import InvalidConfig
from millstream.model.config.inert_reasons import inert_broker_reason
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.nearest import hint
from millstream.model.config.properties import (
    check_settings,
    parse_properties,
    read_settings_text,
    variable_of,
)

METRICS_PORT_DEFAULT: Final = 9404
"""Of the first broker, the others count up; the usual port of Prometheus' JMX exporter."""
_METRICS_PORT: Final = "metrics.port"
_LOG_LEVEL: Final = "log.level"
_QUIET: Final = "WARN"

_NOT_OVERRIDABLE: Final = {
    "broker.id": "up numbers its brokers",
    "node.id": "up numbers its brokers",
    "listeners": "use --host and --port",
    "log.dirs": "use --data-dir",
    "log.dir": "use --data-dir",
    "pid.file": "up finds its brokers by it",
    "zookeeper.connect": "up runs a keeper for its brokers",
    "zookeeper.secret.file": "up gives its brokers the secret of its keeper",
}
"""Settings that differ between brokers or belong to `up`, with what to do instead."""

_OF_ONE: Final = "advertised.listeners"


class BadOverride(Exception):
    """An invalid `--config`; the text says which and why."""


def parse_overrides(given: Sequence[str], *, brokers: int) -> dict[str, str]:
    """Settings by name; raises BadOverride."""
    found: dict[str, str] = {}
    for text in given:
        name, has_value, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not has_value or not name:
            raise BadOverride(f"--config {text}: must be KEY=VALUE, for example num.partitions=3")
        if name in found:
            raise BadOverride(f"--config {name} is given twice; keep one of them")
        _check(name, value, brokers)
        found[name] = value
    return found


def _check(name: str, value: str, brokers: int) -> None:
    if name in _NOT_OVERRIDABLE:
        raise BadOverride(
            f"--config {name} cannot be set for all brokers: {_NOT_OVERRIDABLE[name]}"
        )
    if name == _OF_ONE and brokers > 1:
        raise BadOverride(
            f"--config {name} cannot be the same for {brokers} brokers: set it in the"
            " server.properties of each"
        )
    reason = inert_broker_reason(name)
    if reason is not None:
        raise BadOverride(f"--config {name} has no effect here: {reason}")
    if name in LATER_KEYS:
        raise BadOverride(f"--config {name} has no effect yet: transactions are not supported")
    if name not in BROKER_KEYS:
        raise BadOverride(f"--config {name}: unknown broker setting{hint(name, BROKER_KEYS)}")
    try:
        check_settings({name: value}, "--config")
    except InvalidConfig as error:
        raise BadOverride(str(error)) from None


def launches(
    directories: Sequence[BrokerDirectory],
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    is_quiet: bool,
) -> list[Launch]:
    """How each broker is started; `environment` is this process's own."""
    in_files = [parse_properties(read_settings_text(one.settings_file)) for one in directories]
    for_all = {
        name: environment[variable_of(name)]
        for name in (_METRICS_PORT, _LOG_LEVEL)
        if variable_of(name) in environment
    } | dict(overrides)
    # A broker's listener port must not be taken by the metrics of one that started faster.
    listening = {port for one in in_files for port in _ports(one.get("listeners", ""))}
    free = (port for port in count(METRICS_PORT_DEFAULT) if port not in listening)
    found = []
    for number, (directory, in_file, port) in enumerate(zip(directories, in_files, free)):  # noqa: B905 - endless
        chosen = dict(overrides) | _first_and_following(for_all.get(_METRICS_PORT, ""), number)
        if is_quiet and _LOG_LEVEL not in for_all and _LOG_LEVEL not in in_file:
            chosen[_LOG_LEVEL] = _QUIET
        is_port_chosen = _METRICS_PORT in for_all or _METRICS_PORT in in_file
        variables = {variable_of(name): value for name, value in chosen.items()}
        found.append(Launch(directory, variables, None if is_port_chosen else port))
    return found


def _ports(listeners: str) -> list[int]:
    texts = [one.rpartition(":")[2].strip() for one in listeners.split(",")]
    return [int(text) for text in texts if _is_number(text)]


def _first_and_following(port: str, number: int) -> dict[str, str]:
    """A metrics port cannot be shared by all brokers: it is the first one's, as with --port."""
    return {_METRICS_PORT: str(int(port) + number)} if _is_number(port) and int(port) else {}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
