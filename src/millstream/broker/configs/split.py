"""Of a request that changes settings, the part that is this broker's own, and the controller's.

The levels of loggers are each broker's and end with its process; everything else is the cluster's.
One request may have both: each part is served where it belongs, and the client gets one answer,
in the order in which it asked.
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
    """A request in two."""

    here: IncrementalAlterConfigsRequest
    elsewhere: IncrementalAlterConfigsRequest | None
    """None: all of it is this broker's."""
    are_here: list[bool]
    """Of each resource, in the order of the request."""

    def joined(
        self, here: IncrementalAlterConfigsResponse, elsewhere: IncrementalAlterConfigsResponse
    ) -> IncrementalAlterConfigsResponse:
        """One answer of two."""
        ours, theirs = iter(here.responses), iter(elsewhere.responses)
        responses: list[AlterConfigsResourceResponse] = [
            next(ours if is_here else theirs) for is_here in self.are_here
        ]
        return IncrementalAlterConfigsResponse(
            throttle_time_ms=elsewhere.throttle_time_ms, responses=responses
        )


def split(request: object) -> SplitChange | None:
    """None for a request of which nothing is this broker's own."""
    if not isinstance(request, IncrementalAlterConfigsRequest):
        return None
    are_here = [one.resource_type == ResourceType.BROKER_LOGGER for one in request.resources]
    if not any(are_here):
        return None
    parts: tuple[list[AlterConfigsResource], list[AlterConfigsResource]] = [], []
    for one, is_here in zip(request.resources, are_here, strict=True):
        parts[not is_here].append(one)
    here, elsewhere = (
        IncrementalAlterConfigsRequest(resources=part, validate_only=request.validate_only)
        for part in parts
    )
    return SplitChange(here, None if all(are_here) else elsewhere, are_here)
