"""The controller's side of PullMetadata: a long poll, answered when something is new."""

from collections.abc import Callable
from typing import Final

from millstream.controller.cluster.chunks import (
    Transfer,
    cut_chunks_steps,
    not_controller,
    response_of,
)
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.port import ClusterController, FeedPosition
from millstream.model.ids import BrokerId
from millstream.runtime.scheduler import run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse

WAIT_MAX_S: Final = 30.0
"""The longest wait, whatever the request says: an answer keeps the connection alive."""

TRANSFERS_MAX: Final = 256
"""Brokers in the middle of an answer of several chunks; each keeps an image alive."""


class MetadataSource:
    """Answers the polls of brokers; every broker has one, whether it is the controller or not."""

    def __init__(
        self,
        controller: Callable[[], ClusterController | None],
        remote_controller: Callable[[], Registration | None] = lambda: None,
    ) -> None:
        """`remote_controller`: another broker that is known for certain to be the controller."""
        self._controller = controller
        self._remote_controller = remote_controller
        self._transfers: dict[BrokerId, tuple[int, Transfer]] = {}
        self._transfer_id = 0

    async def answer(self, request: PullMetadataRequest) -> PullMetadataResponse:
        """NOT_CONTROLLER where it is not; SNAPSHOT_NOT_FOUND for chunks that are gone."""
        controller = self._controller()
        broker_id = BrokerId(request.broker_id)
        if controller is None:
            self._transfers.clear()
            return not_controller(self._remote_controller())
        if request.transfer_id:
            return self._next_chunk(broker_id, request)
        position = FeedPosition(request.controller_epoch, request.version)
        wait_s = min(WAIT_MAX_S, max(0, request.max_wait_ms) / 1000)
        try:
            delta = await controller.changes_since(position, wait_s=wait_s)
        except NotController:
            return not_controller(self._remote_controller())
        transfer = await run_on_loop(cut_chunks_steps(delta))
        self._transfer_id += 1
        self._transfers.pop(broker_id, None)
        if len(transfer.chunks) > 1:
            while len(self._transfers) >= TRANSFERS_MAX:
                del self._transfers[next(iter(self._transfers))]
            self._transfers[broker_id] = self._transfer_id, transfer
        return response_of(transfer, transfer_id=self._transfer_id, chunk=0)

    def _next_chunk(
        self, broker_id: BrokerId, request: PullMetadataRequest
    ) -> PullMetadataResponse:
        transfer_id, transfer = self._transfers.get(broker_id, (0, None))
        is_known = transfer is not None and transfer_id == request.transfer_id
        if transfer is None or not is_known or not 0 <= request.chunk < len(transfer.chunks):
            return PullMetadataResponse(error_code=ErrorCode.SNAPSHOT_NOT_FOUND)
        if request.chunk == len(transfer.chunks) - 1:
            del self._transfers[broker_id]
        return response_of(transfer, transfer_id=transfer_id, chunk=request.chunk)
