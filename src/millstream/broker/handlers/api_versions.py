"""ApiVersions (key 18), versions 0-4.

Behaviour: every API of the registry with the versions served. Produce is told from 0 although 0-2
are refused: librdkafka takes a broker without it for one that cannot compress (KAFKA-18659).
A version we do not know is answered in the form of version 0, with UNSUPPORTED_VERSION and the
versions of this API alone, so that the client can ask again (KIP-511). The name and version of the
client's software must look like such (INVALID_REQUEST).
v1 throttle time · v3 flexible, software name and version, features (KIP-584) · v4 features may
begin at 0 (KAFKA-17011). The response's header stays that of version 0 in all of them.

Where it differs from Kafka: a feature is supported at the one level at which it is finalized: what
is there is always on (`broker/requests/features.py` has them). Without `transaction.version`
clients use the protocol from before it, which is what is served. The features' epoch is the version
of the cluster's metadata.
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
    """Tell what is served."""
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
