"""Which version of an API to use: the highest that both sides and the caller allow."""

from typing import Final, NamedTuple

from millstream.rpc.errors import PeerViolation, UnsupportedApiVersion
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsResponse
from millstream.wire.primitives import Bytes

_ERROR_BYTES: Final = 2


class PeerApis:
    """The APIs and versions that one peer serves."""

    __slots__ = ("_chosen", "_ranges", "response")

    def __init__(self, response: ApiVersionsResponse) -> None:
        self.response = response
        """With the features."""
        self._ranges = {
            one.api_key: range(one.min_version, one.max_version + 1) for one in response.api_keys
        }
        self._chosen: dict[tuple[ApiKey, range | None], int] = {}

    def choose(self, key: ApiKey, allowed: range | None = None) -> int:
        """The highest common version, within `allowed` if given; raises UnsupportedApiVersion."""
        version = self._chosen.get((key, allowed))
        if version is None:
            version = highest_common(key, allowed, self._ranges.get(key))
            self._chosen[key, allowed] = version
        return version


def highest_common(key: ApiKey, allowed: range | None, theirs: range | None) -> int:
    """The highest common version; raises UnsupportedApiVersion."""
    ours = APIS[key].versions
    if allowed is not None:
        ours = range(max(ours.start, allowed.start), min(ours.stop, allowed.stop))
    common = range(0)
    if theirs is not None:
        common = range(max(ours.start, theirs.start), min(ours.stop, theirs.stop))
    if not common:
        raise UnsupportedApiVersion(key, ours=ours, theirs=theirs)
    return common[-1]


class RetryWithVersion(NamedTuple):
    """The peer does not know our version of ApiVersions; retry with this one."""

    version: int


def read_api_versions(body: Bytes, version: int) -> ApiVersionsResponse | RetryWithVersion:
    """The response to ApiVersions of `version`. Raises PeerViolation, MalformedFrame.

    A peer that does not know the version responds in version 0, with the versions of ApiVersions
    that it knows (KIP-511); an older peer responds without them.
    """
    error = int.from_bytes(memoryview(body)[:_ERROR_BYTES], "big", signed=True)
    if error == ErrorCode.UNSUPPORTED_VERSION and version > 0:
        response = ApiVersionsResponse.decode(body, 0)
        known = [one for one in response.api_keys if one.api_key == ApiKey.API_VERSIONS]
        best = min(known[0].max_version, version - 1) if known else 0
        return RetryWithVersion(best if best in APIS[ApiKey.API_VERSIONS].versions else 0)
    response = ApiVersionsResponse.decode(body, version)
    if response.error_code != ErrorCode.NONE:
        raise PeerViolation(f"error {response.error_code} in response to ApiVersions")
    return response
