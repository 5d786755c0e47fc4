"""Errors of a group coordinator; `broker/requests/error_codes.py` has the code of each."""

from millstream.shards.errors import RequestRefused


class GroupRefused(RequestRefused):
    """The base class; `reason` is for the user of the client, where the code is not enough."""


class InvalidGroupId(GroupRefused):
    """The group id is empty."""


class UnknownMember(GroupRefused):
    """The group has no such member."""


class MemberIdRequired(GroupRefused):
    """Rejoin with the member id of the response (KIP-394)."""


class FencedInstance(GroupRefused):
    """Another member has taken over the group instance id."""


class UnreleasedInstance(GroupRefused):
    """The group instance id belongs to a member that has not left."""


class IllegalGeneration(GroupRefused):
    """The generation is not the group's."""


class RebalanceInProgress(GroupRefused):
    """The group is rebalancing: rejoin."""


class InconsistentProtocol(GroupRefused):
    """The member has no protocol type or assignor in common with the group."""


class InvalidSessionTimeout(GroupRefused):
    """The session timeout is not within the broker's limits."""


class GroupFull(GroupRefused):
    """The group has reached its maximum size."""


class GroupNotEmpty(GroupRefused):
    """The group has members."""


class GroupNotFound(GroupRefused):
    """There is no such group."""


class GroupSubscribed(GroupRefused):
    """The group is subscribed to the topic."""


class FencedMemberEpoch(GroupRefused):
    """The member epoch is not valid: abandon all partitions and rejoin."""


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
    """The metadata of the offset is longer than `offset.metadata.max.bytes`."""


class UnstableOffsets(GroupRefused):
    """A transaction that commits offsets is open (KIP-447)."""


class TransactionalProducerFenced(GroupRefused):
    """A newer epoch of the producer has committed offsets in a transaction."""
