"""UpdateFeatures (key 57), versions 0-2.

Behaviour: there is no feature whose level could be changed (see ApiVersions), so that each one
asked for is INVALID_UPDATE_VERSION, as from a Kafka that does not know it, and nothing is changed.
A request for none succeeds.
v1 dry runs and kinds of downgrades (KIP-778) · v2 one error for all instead of one for each.
"""

from typing import Final

from millstream.broker.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

VERSIONS: Final = range(3)

_FIRST_WITHOUT_RESULTS: Final = 2


def handle(context: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Refuse what cannot be changed."""
    results = [
        UpdatableFeatureResult(
            feature=one.feature,
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message=f"this cluster has no feature {one.feature!r}",
        )
        for one in request.feature_updates
    ]
    if results and context.version >= _FIRST_WITHOUT_RESULTS:
        return UpdateFeaturesResponse(
            error_code=results[0].error_code, error_message=results[0].error_message
        )
    return UpdateFeaturesResponse(error_message=None, results=results)


def failed(
    request: UpdateFeaturesRequest, error: ErrorCode, version: int
) -> UpdateFeaturesResponse:
    """The error of the whole request."""
    del request, version
    return UpdateFeaturesResponse(error_code=error, error_message=error.text)
