"""What `millstream up` writes about replicas into settings files, for the number of brokers.

The controller's file decides for new topics, and every broker may be the controller: the files must
agree. So what `up` wrote follows the number of brokers as long as nobody changed it; what somebody
changed stays, and where files differ then, `up` says so.
"""

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from millstream.model.config.broker_keys import broker_key
from millstream.model.config.properties import parse_properties, render_properties, variable_of

REPLICAS_MAX: Final = 3
"""Of topics whose creator does not say how many; more brokers do not mean more copies."""

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
    """For so many brokers; None is one that is alone."""
    replicas = min(cluster_size or 1, REPLICAS_MAX)
    settings = dict.fromkeys(_FACTORS, str(replicas))
    if cluster_size is not None:
        # With three copies one broker may be gone, and every record is still on two disks.
        settings |= dict.fromkeys(_IN_SYNC, str(max(1, replicas - 1)))
    return settings


def mark(cluster_size: int) -> str:
    """The line that says for how many brokers a file was written."""
    return _MARK.format(cluster_size) + "\n"


class Grown(NamedTuple):
    """A settings file for more brokers than it was written for."""

    text: str
    changes: dict[str, str]
    """The settings that are not as before."""


def grown(text: str, cluster_size: int) -> Grown | None:
    """The file with what `up` wrote for fewer brokers brought in line; None: it stays."""
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
    """What `up` wrote into the file; None for a file in which somebody changed it all."""
    found = next((one for line in text.splitlines() if (one := _MARKED.match(line))), None)
    if found is not None:
        return replica_defaults(int(found[1]))
    # Files of earlier versions have no such line: all of their values must be of one number.
    of_replicas = {name: settings[name] for name in (*_FACTORS, *_IN_SYNC) if name in settings}
    sizes = (None, *range(1, REPLICAS_MAX + 1))
    return next((one for one in map(replica_defaults, sizes) if one == of_replicas), None)


def with_setting(text: str, key: str, value: str) -> str:
    """Change this one line: the rest of the file, comments and all, is the user's."""
    line = render_properties({key: value}).strip()
    is_key = re.compile(rf"\s*{re.escape(key)}\s*[=:\s]")
    kept = [one for one in text.splitlines() if not is_key.match(one)]
    return "\n".join([*kept, line, ""])


def disagreements(files: Mapping[int, Mapping[str, str]], environment: Container[str]) -> list[str]:
    """A line for each setting that the brokers' files have different values of."""
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
        " controller, so set the same in each broker's server.properties"
    )
