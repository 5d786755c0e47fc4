"""UpdateFeatures (key 57), versions 0-2.

Behaviour: a feature has the one supported level (see ApiVersions). An update to that level succeeds
and changes nothing, as an upgrade, as a downgrade and as a dry run; any other level, an unknown
feature and an unknown type of update are INVALID_UPDATE_VERSION. If one fails all fail: the error
is that of the request, in every version, and there are no results. If a feature is named twice the
last update is used. A request without updates succeeds.
v1 dry runs and upgrade types (KIP-778); v0's permission to downgrade is ignored, as in Kafka · v2
no results.

Where it differs from Kafka: nothing can be downgraded or disabled; in Kafka `group.version` and
others can be set to 0.
"""

from typing import Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.features import FEATURES
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FIRST_WITHOUT_RESULTS: Final = 2
_UPGRADE_TYPES: Final = range(1, 4)
"""Upgrade, safe downgrade, unsafe downgrade."""


def handle(context: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Accept updates to the supported level, refuse all others."""
    for update in {one.feature: one for one in request.feature_updates}.values():
        reason = _refusal(update)
        if reason is not None:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=f"no feature was updated: {reason}",
            )
    response = UpdateFeaturesResponse(error_message=None)
    if context.version < _FIRST_WITHOUT_RESULTS:
        response.results = [
            UpdatableFeatureResult(feature=one.feature, error_message=None)
            for one in request.feature_updates
        ]
    return response


def _refusal(update: FeatureUpdateKey) -> str | None:
    """Why the feature cannot get this level; None if it has it."""
    feature, wanted = update.feature, update.max_version_level
    level = FEATURES.get(feature)
    if update.upgrade_type not in _UPGRADE_TYPES:
        return f"upgrade type {update.upgrade_type} of feature {feature!r} is unknown"
    if level is None:
        return f"feature {feature!r} is not supported"
    if wanted != level:
        return f"feature {feature!r} cannot be {wanted}: only version {level} is supported"
    return None


def failed(
    request: UpdateFeaturesRequest, error: ErrorCode, version: int
) -> UpdateFeaturesResponse:
    """The error of the whole request."""
    del request, version
    return UpdateFeaturesResponse(error_code=error, error_message=error.text)
