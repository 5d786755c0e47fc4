"""Splits a request that changes settings into this broker's part and the controller's.

Log levels belong to a broker and end with its process; everything else is the cluster's. One
request may have both: each part is served where it belongs, and the client gets one answer, in the
order of the request.
"""

from typing import NamedTuple

from millstream.model.config.resources import ResourceType
from millstream.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class SplitChange(NamedTuple):
    """A request in two parts."""

    local: IncrementalAlterConfigsRequest
    remote: IncrementalAlterConfigsRequest | None
    """None: all of it is local."""
    are_local: list[bool]
    """For each resource, in the order of the request."""

    def join(
        self, local: IncrementalAlterConfigsResponse, remote: IncrementalAlterConfigsResponse
    ) -> IncrementalAlterConfigsResponse:
        """One answer from two."""
        ours, theirs = iter(local.responses), iter(remote.responses)
        responses: list[AlterConfigsResourceResponse] = [
            next(ours if is_local else theirs) for is_local in self.are_local
        ]
        return IncrementalAlterConfigsResponse(
            throttle_time_ms=remote.throttle_time_ms, responses=responses
        )


def split(request: object) -> SplitChange | None:
    """None for a request without a local part."""
    if not isinstance(request, IncrementalAlterConfigsRequest):
        return None
    are_local = [one.resource_type == ResourceType.BROKER_LOGGER for one in request.resources]
    if not any(are_local):
        return None
    parts: tuple[list[AlterConfigsResource], list[AlterConfigsResource]] = [], []
    for one, is_local in zip(request.resources, are_local, strict=True):
        parts[not is_local].append(one)
    local, remote = (
        IncrementalAlterConfigsRequest(resources=part, validate_only=request.validate_only)
        for part in parts
    )
    return SplitChange(local, None if all(are_local) else remote, are_local)
