"""DescribeGroups (key 15), versions 0-6: a classic group as tools and administrators see it."""

from millstream.groups.classic.core import Core
from millstream.groups.classic.states import GroupState
from millstream.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember


def describe(core: Core) -> DescribedGroup:
    """Only a stable group reports its protocol and the members' metadata for it."""
    name = core.protocol_name if core.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=core.group_id,
        group_state=core.state.value,
        protocol_type=core.protocol_type or "",
        protocol_data=name or "",
        members=[
            DescribedGroupMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.facts.client_id,
                client_host=one.facts.client_host,
                member_metadata=b"" if name is None else one.metadata(name),
                member_assignment=one.assignment,
            )
            for one in core.roster
        ],
    )
