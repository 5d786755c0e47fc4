"""A decision of the controller: what to write, and the state once it is written.

Decisions are pure functions of an image. The shell writes the groups in their order, each in one
multi that is fenced by the controller's epoch (I-16), and applies the image when all are written. A
controller that dies between two groups leaves a state that the next one can finish.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from millstream.controller.image import ClusterImage, ImageChange, TopicImage
from millstream.coordination.port import Operation

T = TypeVar("T")

Group = Sequence[Operation]
"""Carried out together or not at all. Several may share a multi, a group is never split."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A decision. Without groups nothing changes."""

    result: T
    image: ClusterImage
    """The image once everything is written; the previous one where nothing is."""
    groups: Sequence[Group] = ()
    change: ImageChange = field(default_factory=ImageChange)
    """Between the image before and `image`."""


class Policy(NamedTuple):
    """The effective settings of topics that decisions need."""

    in_sync_min: Callable[[TopicImage], int]
    """`min.insync.replicas` as it is set. Decisions cap it by the number of replicas of each
    partition: a cap per topic would change with other partitions, unnoticed by the ELR."""
    is_unclean_allowed: Callable[[TopicImage], bool]
    """`unclean.leader.election.enable`."""
    controller_epoch: int = 0
    """Of the deciding controller; states record which one wrote them."""
