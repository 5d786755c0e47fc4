"""What a broker announces of its APIs, also to a client whose ApiVersions it does not serve."""

from millstream.broker.requests.registry import PRODUCE_ADVERTISED_FROM, SERVED
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse


def announced_range(key: ApiKey) -> ApiVersion:
    """The versions of one API."""
    versions = SERVED[key].versions
    first = PRODUCE_ADVERTISED_FROM if key is ApiKey.PRODUCE else versions[0]
    return ApiVersion(api_key=key, min_version=first, max_version=versions[-1])


def unsupported_version() -> ApiVersionsResponse:
    """For a version of ApiVersions that is not served; to be encoded as version 0 (KIP-511)."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[announced_range(ApiKey.API_VERSIONS)]
    )
