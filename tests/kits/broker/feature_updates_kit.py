"""Updates of features and what is answered to them, the same by Kafka and by ours."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.wire.errors import ErrorCode
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

GROUPS: Final = "group.version"
ELIGIBLE: Final = "eligible.leader.replicas.version"
METADATA: Final = "metadata.version"
METADATA_LEVEL: Final = 30  # of Kafka 4.3

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class Update(NamedTuple):
    """Of one feature."""

    feature: str
    level: int
    kind: int = UPGRADE


class Case(NamedTuple):
    """A request and whether it is fine."""

    name: str
    updates: Sequence[Update]
    is_fine: bool = False
    has_kinds: bool = False
    """Then version 0 cannot say it."""


CASES: Final = (
    Case("nothing", [], is_fine=True),
    Case("the level that it has", [Update(GROUPS, 1)], is_fine=True),
    Case("two that have it", [Update(GROUPS, 1), Update(ELIGIBLE, 1)], is_fine=True),
    Case("one twice", [Update(GROUPS, 1), Update(GROUPS, 1)], is_fine=True),
    Case("metadata at its level", [Update(METADATA, METADATA_LEVEL)], is_fine=True),
    Case("too high", [Update(GROUPS, 7)]),
    Case("metadata too high", [Update(METADATA, 999)]),
    Case("below zero", [Update(GROUPS, -1)]),
    Case("unknown", [Update("no.such.version", 1)]),
    Case("unknown at zero", [Update("no.such.version", 0)]),
    Case("no name", [Update("", 1)]),
    Case("lower as an upgrade", [Update(GROUPS, 0)]),
    Case("metadata lower as an upgrade", [Update(METADATA, 7)]),
    Case("one of two", [Update(GROUPS, 1), Update("no.such.version", 1)]),
    Case("the last of two counts, too high", [Update(GROUPS, 1), Update(GROUPS, 9)]),
    Case("the last of two counts, fine", [Update(GROUPS, 9), Update(GROUPS, 1)], is_fine=True),
    Case("same as a downgrade", [Update(GROUPS, 1, SAFE_DOWNGRADE)], True, has_kinds=True),
    Case("same as an unsafe one", [Update(GROUPS, 1, UNSAFE_DOWNGRADE)], True, has_kinds=True),
    Case("a higher downgrade", [Update(GROUPS, 2, SAFE_DOWNGRADE)], has_kinds=True),
    Case("unknown downgrade", [Update("no.such.version", 0, SAFE_DOWNGRADE)], has_kinds=True),
    Case("metadata down", [Update(METADATA, 29, SAFE_DOWNGRADE)], has_kinds=True),
    Case("metadata down, unsafe", [Update(METADATA, 29, UNSAFE_DOWNGRADE)], has_kinds=True),
    Case("metadata far down", [Update(METADATA, 2, SAFE_DOWNGRADE)], has_kinds=True),
    *(Case(f"kind {kind}", [Update(GROUPS, 1, kind)], has_kinds=True) for kind in (-1, 0, 4, 127)),
)


class Outcome(NamedTuple):
    """What a client sees; error texts are everybody's own."""

    error: ErrorCode
    has_text: bool
    results: list[tuple[str, ErrorCode]]


def requests(case: Case, version: int) -> list[UpdateFeaturesRequest]:
    """As the version can say it: done, and (v1+) as a dry run."""
    updates = [
        FeatureUpdateKey(feature=one.feature, max_version_level=one.level)
        if version == 0
        else FeatureUpdateKey(
            feature=one.feature, max_version_level=one.level, upgrade_type=one.kind
        )
        for one in case.updates
    ]
    if version == 0 and case.has_kinds:
        return []
    done = UpdateFeaturesRequest(feature_updates=updates)
    if version == 0:
        return [done]
    return [done, UpdateFeaturesRequest(feature_updates=updates, validate_only=True)]


def outcome(response: UpdateFeaturesResponse) -> Outcome:
    results = [(one.feature, ErrorCode(one.error_code)) for one in response.results]
    return Outcome(ErrorCode(response.error_code), bool(response.error_message), results)


def expected(case: Case, version: int) -> Outcome:
    if not case.is_fine:
        return Outcome(ErrorCode.INVALID_UPDATE_VERSION, True, [])
    named = [(one.feature, ErrorCode.NONE) for one in case.updates] if version < 2 else []
    return Outcome(ErrorCode.NONE, False, named)
