"""How a controller writes: groups packed into as few multis as possible, each fenced.

The first operation of every multi checks the version of `/controller_epoch`. Once another
controller is elected that version has changed, and no write of the old one succeeds (I-16).
"""

from collections.abc import Iterator, Sequence

from millstream.controller.cluster.nodes import CONTROLLER_EPOCH
from millstream.controller.cluster.plans import Group
from millstream.coordination.errors import MultiFailed, MultiUnproved
from millstream.coordination.port import (
    MULTI_BYTES_MAX,
    MULTI_OPERATIONS_MAX,
    Check,
    Create,
    MultiResult,
    Operation,
    Session,
    Set,
)
from millstream.coordination.proofs import multi_with_proof
from millstream.model.errors import OperatingError
from millstream.model.invariant import invariant


class Deposed(OperatingError):
    """Another controller was elected; nothing was written."""


class ImageOutdated(OperatingError):
    """The coordination service has something that this controller did not write."""


def size_of(operation: Operation) -> int:
    """Its size as counted towards the limit of a multi."""
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path.encode()) + len(data)


def pack_groups(groups: Sequence[Group], fence: Check) -> Iterator[list[Operation]]:
    """The groups in their order, several in one multi, none split; each multi begins with the
    fence.
    """
    multi: list[Operation] = [fence]
    multi_bytes = size_of(fence)
    for group in groups:
        group_bytes = sum(map(size_of, group))
        count = len(group)
        is_possible = (
            count < MULTI_OPERATIONS_MAX and group_bytes + size_of(fence) <= MULTI_BYTES_MAX
        )
        invariant(is_possible, "a group is too large for a multi", count=count, bytes=group_bytes)
        is_full = len(multi) + count > MULTI_OPERATIONS_MAX
        if len(multi) > 1 and (is_full or multi_bytes + group_bytes > MULTI_BYTES_MAX):
            yield multi
            multi, multi_bytes = [fence], size_of(fence)
        multi += group
        multi_bytes += group_bytes
    if len(multi) > 1:
        yield multi


class FencedWriter:
    """Writes for one controller; after the first refusal it writes nothing more."""

    def __init__(self, session: Session, *, epoch_version: int) -> None:
        self._session = session
        self._fence = Check(path=CONTROLLER_EPOCH, version=epoch_version)
        self.is_over = False

    async def write(self, groups: Sequence[Group]) -> list[MultiResult]:
        """Write all groups in their order; returns the results without those of the fences.

        Raises Deposed, SessionLost, or ImageOutdated; then only some groups may be written, and the
        next controller finishes them.
        """
        results: list[MultiResult] = []
        for multi in pack_groups(groups, self._fence):
            if self.is_over:
                raise Deposed("this controller was deposed")
            invariant(multi[0] is self._fence, "I-16 a controller writes without its epoch")
            try:
                results += (await multi_with_proof(self._session, multi))[1:]
            except MultiFailed as error:
                self.is_over = True
                if error.index == 0:
                    raise Deposed("another controller was elected") from error
                raise ImageOutdated(str(error)) from error
            except MultiUnproved as error:
                self.is_over = True
                raise ImageOutdated(str(error)) from error
            except BaseException:
                # Cancelled or lost: the multi may still be carried out. Nothing may be written
                # after it.
                self.is_over = True
                raise
        return results
