"""Subscriptions by pattern: when they are resolved, and what follows.

A pattern is validated when a member sends it. The topics it matches are found later, in steps
(`regex_job`), and are written as a record of the group with a new group epoch; all patterns of a
group are resolved together, so that they cost one rebalance. Patterns are resolved when one has no
record yet, when topics were created, and periodically because topics are deleted as well; not more
often than every ten seconds.
"""

from enum import Enum, auto
from typing import Final

from millstream.groups.consumer import entries
from millstream.groups.consumer.core import REGEX_KEY, Core
from millstream.groups.consumer.entries import ResolvedRegex
from millstream.groups.consumer.member import ConsumerMember
from millstream.groups.consumer.regex_automaton import TopicRegex
from millstream.groups.consumer.regex_job import RegexJob
from millstream.groups.consumer.topics import metadata_hash
from millstream.groups.records.entries import Entry

REFRESH_MIN_MS: Final = 10_000
"""As in Kafka: a member that keeps changing its pattern must not keep the broker busy."""
REFRESH_MS: Final = 600_000
"""The default of Kafka's `group.consumer.regex.refresh.interval.ms`."""


class RegexChange(Enum):
    """What a request does to the member's pattern."""

    NONE = auto()
    UPDATED = auto()
    """The group epoch is bumped when it has been resolved."""
    RESOLVED = auto()
    """Its topics are known already (or the member has no pattern any more)."""


def update_regexes(
    core: Core, before: ConsumerMember, after: ConsumerMember, records: list[Entry]
) -> RegexChange:
    """Handle the pattern of a member that joins or heartbeats; raises InvalidRegularExpression."""
    old, new = before.topic_regex, after.topic_regex
    change = RegexChange.NONE
    counts = core.state.regex_counts
    if old != new:
        change = RegexChange.UPDATED
        if old and counts[old] == 1:
            records.append(entries.regex_tombstone(core.state.group_id, old))
        if new and not counts[new]:
            TopicRegex(new)
        elif not new or new in core.state.regexes:
            change = RegexChange.RESOLVED
    if new or counts:
        _schedule(core, new)
    return change


def _schedule(core: Core, new: str) -> None:
    state = core.state
    is_unresolved = any(one not in state.regexes for one in (*state.regex_counts, new) if one)
    is_stale = core.resolved_version < core.topics.created_version
    at_ms = core.resolved_at_ms
    if at_ms is None:
        core.deadlines.set_once(REGEX_KEY, core.now_ms)
    elif is_unresolved or is_stale or core.now_ms > at_ms + REFRESH_MS:
        core.deadlines.set_once(REGEX_KEY, max(core.now_ms, at_ms + REFRESH_MIN_MS + 1))


def step(core: Core) -> None:
    """Do one step of the job; the last one writes the topics found."""
    if core.regex_job is None:
        patterns = list(core.state.regex_counts)
        if not patterns:
            return
        core.regex_job = RegexJob(patterns, core.topics.names(), core.topics.version)
    found = core.regex_job.step()
    if found is None:
        core.deadlines.set(REGEX_KEY, core.now_ms)
        return
    version, core.regex_job = core.regex_job.version, None
    _write_found(core, found, version)


def _write_found(core: Core, found: dict[str, frozenset[str]], version: int) -> None:
    state = core.state
    wall_ms = core.wall_clock_ms()
    changed: dict[str, ResolvedRegex] = {}
    needs_epoch = False
    for pattern, topics in found.items():
        known = state.regexes.get(pattern)
        if not state.regex_counts[pattern] or (known is not None and known.topics == topics):
            continue
        changed[pattern] = ResolvedRegex(topics, version, wall_ms)
        needs_epoch |= bool(topics) or known is not None
    records = [entries.resolved_regex(state.group_id, *one) for one in changed.items()]
    hashed = metadata_hash(state.subscribed_after(resolved=changed), core.topics)
    if needs_epoch or hashed != state.metadata_hash:
        records.append(entries.group_epoch(state.group_id, state.epoch + 1, hashed))
    if not changed:
        core.resolved_at_ms, core.resolved_version = core.now_ms, version
    if records:
        core.write(records)
