"""UpdateFeatures, versions 0-2: `test_admin_kafka.py` asks Apache Kafka the same."""

import pytest

from kits.broker.feature_updates_kit import (
    CASES,
    ELIGIBLE,
    GROUPS,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    Case,
    Update,
    expected,
    outcome,
    requests,
)
from kits.broker.topic_handlers_kit import Desk
from kits.broker.versions import versions_of
from millstream.broker.handlers import update_features
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("version", versions_of(update_features))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_that_cannot_be_fails_all_in_every_version(
    desk: Desk, case: Case, version: int
) -> None:
    for request in requests(case, version):
        answer = desk.send(update_features, request, UpdateFeaturesResponse, version)
        assert outcome(answer) == expected(case, version)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
@pytest.mark.parametrize("feature", [GROUPS, ELIGIBLE])
def test_what_is_there_cannot_be_disabled(
    desk: Desk, feature: str, kind: int, version: int
) -> None:
    """Kafka can: a difference that is meant."""
    for request in requests(Case("off", [Update(feature, 0, kind)]), version):
        answer = desk.send(update_features, request, UpdateFeaturesResponse, version)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert feature in str(answer.error_message)


def test_permission_to_downgrade_of_the_oldest_version_means_nothing(desk: Desk) -> None:
    update = FeatureUpdateKey(feature=GROUPS, max_version_level=0, allow_downgrade=True)
    request = UpdateFeaturesRequest(feature_updates=[update])
    answer = desk.send(update_features, request, UpdateFeaturesResponse, 0)
    assert outcome(answer) == (ErrorCode.INVALID_UPDATE_VERSION, True, [])


@pytest.mark.parametrize("version", versions_of(update_features))
def test_a_whole_failure_is_its_error(version: int) -> None:
    failed = update_features.failed(UpdateFeaturesRequest(), ErrorCode.NOT_CONTROLLER, version)
    decoded = UpdateFeaturesResponse.decode(memoryview(failed.encode(version)), version)
    assert outcome(decoded) == (ErrorCode.NOT_CONTROLLER, True, [])
