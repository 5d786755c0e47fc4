"""Replica settings that `millstream up` writes into settings files, for the number of brokers.

The controller's file decides for new topics, and every broker may become the controller: the files
must agree. So what `up` wrote follows the number of brokers until the user changes it; a changed
value stays, and `up` warns where the files then disagree.
"""

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from millstream.model.config.broker_keys import broker_key
from millstream.model.config.properties import parse_properties, render_properties, variable_of

REPLICAS_MAX: Final = 3
"""For topics created without a replication factor; more brokers do not mean more replicas."""

_FACTORS: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "default.replication.factor",
)
_IN_SYNC: Final = ("min.insync.replicas", "transaction.state.log.min.isr")
_DECIDED_BY_ONE: Final = (*_FACTORS, *_IN_SYNC, "num.partitions")

_MARK: Final = (
    "# Written by millstream up for {} broker(s); what stays unchanged follows that number."
)
_MARKED: Final = re.compile(r"# Written by millstream up for (\d{1,4}) broker\(s\);.*")


def replica_defaults(cluster_size: int | None) -> dict[str, str]:
    """Defaults for that many brokers; None: a standalone broker."""
    replicas = min(cluster_size or 1, REPLICAS_MAX)
    settings = dict.fromkeys(_FACTORS, str(replicas))
    if cluster_size is not None:
        # With three replicas one broker may be down, and every record is still on two disks.
        settings |= dict.fromkeys(_IN_SYNC, str(max(1, replicas - 1)))
    return settings


def mark(cluster_size: int) -> str:
    """The comment that records for how many brokers a file was written."""
    return _MARK.format(cluster_size) + "\n"


class Grown(NamedTuple):
    """A settings file for more brokers than it was written for."""

    text: str
    changes: dict[str, str]
    """The settings whose values changed."""


def grown(text: str, cluster_size: int) -> Grown | None:
    """The file with the values that `up` wrote for fewer brokers updated; None: unchanged."""
    settings = parse_properties(text)
    former = _former_defaults(text, settings)
    wanted = replica_defaults(cluster_size)
    if former is None or int(wanted[_FACTORS[0]]) <= int(former[_FACTORS[0]]):
        return None
    changes = {
        name: value
        for name, value in wanted.items()
        if settings.get(name) == former.get(name) != value
    }
    kept = "".join(one for one in text.splitlines(keepends=True) if not _MARKED.match(one))
    for name, value in changes.items():
        kept = with_setting(kept, name, value)
    return Grown(mark(cluster_size) + kept, changes)


def _former_defaults(text: str, settings: Mapping[str, str]) -> dict[str, str] | None:
    """What `up` wrote into the file; None if the user changed all of it."""
    found = next((one for line in text.splitlines() if (one := _MARKED.match(line))), None)
    if found is not None:
        return replica_defaults(int(found[1]))
    # Files of earlier versions have no such line: all of their values must be of one number.
    of_replicas = {name: settings[name] for name in (*_FACTORS, *_IN_SYNC) if name in settings}
    sizes = (None, *range(1, REPLICAS_MAX + 1))
    return next((one for one in map(replica_defaults, sizes) if one == of_replicas), None)


def with_setting(text: str, key: str, value: str) -> str:
    """Change this one line: the rest of the file, including comments, is the user's."""
    line = render_properties({key: value}).strip()
    is_key = re.compile(rf"\s*{re.escape(key)}\s*[=:\s]")
    kept = [one for one in text.splitlines() if not is_key.match(one)]
    return "\n".join([*kept, line, ""])


def disagreements(files: Mapping[int, Mapping[str, str]], environment: Container[str]) -> list[str]:
    """A line for each setting whose value differs between the brokers' files."""
    return [
        line
        for name in _DECIDED_BY_ONE
        if variable_of(name) not in environment and (line := _disagreement(name, files)) is not None
    ]


def _disagreement(name: str, files: Mapping[int, Mapping[str, str]]) -> str | None:
    brokers: dict[str, list[str]] = defaultdict(list)
    for broker_id, settings in sorted(files.items()):
        brokers[settings.get(name, broker_key(name).default or "")].append(str(broker_id))
    if len(brokers) < 2:
        return None
    values = ", ".join(
        f"{value} on broker{'s' if len(ids) > 1 else ''} {','.join(ids)}"
        for value, ids in brokers.items()
    )
    return (
        f"brokers disagree on {name}: {values}; which value is used depends on which broker is the"
        " controller, so set the same value in each broker's server.properties"
    )
