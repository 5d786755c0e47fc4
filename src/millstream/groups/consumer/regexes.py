"""Subscriptions by pattern: when they are resolved, and what follows.

A pattern is checked when a member brings it, but what it stands for is found afterwards, in steps
(`regex_job`), and becomes a record of the group with a new group epoch; all patterns of a group are
resolved together, so that they cost one rebalance. That is done when a pattern has no record yet,
when topics were created, and every so often because topics disappear as well; not more often than
every ten seconds.
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
"""Kafka's: a member that changes its pattern all the time must not keep the broker busy."""
REFRESH_MS: Final = 600_000
"""The default of Kafka's `group.consumer.regex.refresh.interval.ms`."""


class RegexChange(Enum):
    """What a request does to the member's pattern."""

    NONE = auto()
    UPDATED = auto()
    """The group's epoch goes up when it has been resolved."""
    RESOLVED = auto()
    """It is known already what it stands for (or that there is none any more)."""


def note_change(
    core: Core, before: ConsumerMember, after: ConsumerMember, told: list[Entry]
) -> RegexChange:
    """The pattern of a member that joins or asks; raises InvalidRegularExpression."""
    old, new = before.topic_regex, after.topic_regex
    change = RegexChange.NONE
    counts = core.state.regex_counts
    if old != new:
        change = RegexChange.UPDATED
        if old and counts[old] == 1:
            told.append(entries.regex_tombstone(core.state.group_id, old))
        if new and not counts[new]:
            TopicRegex(new)
        elif not new or new in core.state.regexes:
            change = RegexChange.RESOLVED
    if new or counts:
        _plan(core, new)
    return change


def _plan(core: Core, new: str) -> None:
    state = core.state
    is_unresolved = any(one not in state.regexes for one in (*state.regex_counts, new) if one)
    is_stale = core.resolved_version < core.topics.created_version
    at_ms = core.resolved_at_ms
    if at_ms is None:
        core.deadlines.set_once(REGEX_KEY, core.now_ms)
    elif is_unresolved or is_stale or core.now_ms > at_ms + REFRESH_MS:
        core.deadlines.set_once(REGEX_KEY, max(core.now_ms, at_ms + REFRESH_MIN_MS + 1))


def step(core: Core) -> None:
    """A piece of the work; the last one writes what was found."""
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
    news: dict[str, ResolvedRegex] = {}
    needs_epoch = False
    for pattern, topics in found.items():
        known = state.regexes.get(pattern)
        if not state.regex_counts[pattern] or (known is not None and known.topics == topics):
            continue
        news[pattern] = ResolvedRegex(topics, version, wall_ms)
        needs_epoch |= bool(topics) or known is not None
    told = [entries.resolved_regex(state.group_id, *one) for one in news.items()]
    hashed = metadata_hash(state.subscribed_after(resolved=news), core.topics)
    if needs_epoch or hashed != state.metadata_hash:
        told.append(entries.group_epoch(state.group_id, state.epoch + 1, hashed))
    if not news:
        core.resolved_at_ms, core.resolved_version = core.now_ms, version
    if told:
        core.write(told)
