"""How a controller writes: groups packed into as few multis as they fit, each behind the fence.

The first operation of every multi checks the version of `/controller_epoch`. Once another
controller was elected that version is gone, and nothing of the old one is carried out (I-16).
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


class ImageMistaken(OperatingError):
    """What the coordination service has is not what this controller wrote: somebody else did."""


def size_of(operation: Operation) -> int:
    """Its bytes as the limit of a multi counts them."""
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path.encode()) + len(data)


def packed(groups: Sequence[Group], fence: Check) -> Iterator[list[Operation]]:
    """The groups in their order, several in one multi, none split; each behind the fence."""
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
        """All of them, in their order; the results without those of the fences.

        Raises Deposed, SessionLost, or ImageMistaken; then groups may be written in part, and the
        next controller finishes them.
        """
        results: list[MultiResult] = []
        for multi in packed(groups, self._fence):
            if self.is_over:
                raise Deposed("this controller writes nothing any more")
            invariant(multi[0] is self._fence, "I-16 a controller writes without its epoch")
            try:
                results += (await multi_with_proof(self._session, multi))[1:]
            except MultiFailed as error:
                self.is_over = True
                if error.index == 0:
                    raise Deposed("another controller was elected") from error
                raise ImageMistaken(str(error)) from error
            except MultiUnproved as error:
                self.is_over = True
                raise ImageMistaken(str(error)) from error
            except BaseException:
                # Cancelled or lost: the multi may still be carried out. Nobody writes after it.
                self.is_over = True
                raise
        return results
