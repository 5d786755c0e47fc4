"""ApiVersions (key 18), versions 0-4.

Behaviour: every API of the registry with the supported versions. Produce is announced from 0
although 0-2 are refused: librdkafka assumes of a broker without them that it cannot compress
(KAFKA-18659). An unknown version is answered in the form of version 0, with UNSUPPORTED_VERSION and
the versions of this API only, so that the client can retry (KIP-511). The name and version of the
client's software must be well-formed (INVALID_REQUEST).
v1 throttle time · v3 flexible, software name and version, features (KIP-584) · v4 features may
begin at 0 (KAFKA-17011). The response's header stays that of version 0 in all of them.

Where it differs from Kafka: a feature is supported at the one level at which it is finalized: the
supported features are always on (`broker/requests/features.py` has them). Without
`transaction.version` clients use the protocol from before it, which is what is supported. The
features' epoch is the version of the cluster's metadata.
"""

import re
from typing import Final

from millstream.broker.requests.announced import announced_range
from millstream.broker.requests.context import Context
from millstream.broker.requests.features import FEATURES
from millstream.broker.requests.registry import SERVED
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_FIRST_WITH_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def handle(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Announce the supported APIs and features."""
    if context.version >= _FIRST_WITH_SOFTWARE and not _is_named(request):
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    return ApiVersionsResponse(
        api_keys=[announced_range(key) for key in sorted(SERVED)],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=level, max_version=level)
            for name, level in FEATURES.items()
        ],
        finalized_features_epoch=max(0, context.services.image.version),
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in FEATURES.items()
        ],
    )


def failed(request: ApiVersionsRequest, error: ErrorCode, version: int) -> ApiVersionsResponse:
    """The whole request's failure."""
    del request, version
    return ApiVersionsResponse(error_code=error)


def _is_named(request: ApiVersionsRequest) -> bool:
    names = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(name) for name in names)
