"""What a group coordinator refuses; `broker/requests/error_codes.py` has the code of each."""

from millstream.shards.errors import RequestRefused


class GroupRefused(RequestRefused):
    """The base of them; `reason` is for the client's user, where the code does not say it all."""


class InvalidGroupId(GroupRefused):
    """The group id is empty."""


class UnknownMember(GroupRefused):
    """The group has no such member."""


class MemberIdRequired(GroupRefused):
    """Join again with the member id that is given here (KIP-394)."""


class FencedInstance(GroupRefused):
    """Another member has taken over the group instance id."""


class UnreleasedInstance(GroupRefused):
    """The group instance id belongs to a member that has not left."""


class IllegalGeneration(GroupRefused):
    """The generation is not the group's."""


class RebalanceInProgress(GroupRefused):
    """The group is rebalancing: join again."""


class InconsistentProtocol(GroupRefused):
    """The member has no protocol type or assignor in common with the group."""


class InvalidSessionTimeout(GroupRefused):
    """The session timeout is not within the broker's limits."""


class GroupFull(GroupRefused):
    """The group has as many members as it may have."""


class GroupNotEmpty(GroupRefused):
    """The group has members."""


class GroupNotFound(GroupRefused):
    """There is no such group."""


class GroupSubscribed(GroupRefused):
    """The group is subscribed to the topic."""


class FencedMemberEpoch(GroupRefused):
    """Not the member epoch that the coordinator gave: leave all partitions, join anew."""


class StaleMemberEpoch(GroupRefused):
    """The member epoch is older than the member's."""


class UnsupportedCommitVersion(GroupRefused):
    """OffsetCommit version 9 or above must be used by members of the consumer group protocol."""


class UnsupportedAssignor(GroupRefused):
    """The broker has no assignor of this name."""


class InvalidRegularExpression(GroupRefused):
    """The regular expression of the subscription is not valid."""


class InvalidGroupRequest(GroupRefused):
    """The request contradicts itself."""


class OffsetMetadataTooLarge(GroupRefused):
    """The text that goes with the offset is longer than `offset.metadata.max.bytes`."""


class UnstableOffsets(GroupRefused):
    """A transaction that commits offsets is open (KIP-447)."""


class TransactionalProducerFenced(GroupRefused):
    """A newer epoch of the producer has committed offsets in a transaction."""
