"""UpdateFeatures (key 57), versions 0-2.

Behaviour: a feature has the one level that is served (see ApiVersions). To ask for that level
succeeds and changes nothing; another one, and a feature that is not there, are
INVALID_UPDATE_VERSION, as from a Kafka that does not support it. A request for none succeeds.
v1 dry runs and kinds of downgrades (KIP-778) · v2 one error for all instead of one for each.
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

VERSIONS: Final = range(3)

_FIRST_WITHOUT_RESULTS: Final = 2


def handle(context: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Refuse what cannot be changed."""
    results = [_result(one) for one in request.feature_updates]
    refused = [one for one in results if one.error_code != ErrorCode.NONE]
    if refused and context.version >= _FIRST_WITHOUT_RESULTS:
        return UpdateFeaturesResponse(
            error_code=refused[0].error_code, error_message=refused[0].error_message
        )
    return UpdateFeaturesResponse(error_message=None, results=results)


def _result(update: FeatureUpdateKey) -> UpdatableFeatureResult:
    level = FEATURES.get(update.feature)
    if level is not None and update.max_version_level == level:
        return UpdatableFeatureResult(feature=update.feature, error_message=None)
    reason = f"this cluster has no feature {update.feature!r}"
    if level is not None:
        reason = f"{update.feature} is {level} here and cannot be changed"
    return UpdatableFeatureResult(
        feature=update.feature,
        error_code=ErrorCode.INVALID_UPDATE_VERSION,
        error_message=reason,
    )


def failed(
    request: UpdateFeaturesRequest, error: ErrorCode, version: int
) -> UpdateFeaturesResponse:
    """The error of the whole request."""
    del request, version
    return UpdateFeaturesResponse(error_code=error, error_message=error.text)
