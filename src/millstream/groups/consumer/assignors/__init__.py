"""Server-side assignors, by their names in `group.consumer.assignors`.

None of them is rack-aware: Kafka removed that before 4.0, so the rack of a member has no effect
(KAFKA-17747 adds racks to the hash only to detect that they changed).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from millstream.groups.consumer.assignors.ranges import assign_ranges
from millstream.groups.consumer.assignors.spec import Assign
from millstream.groups.consumer.assignors.uniform import assign_uniform

ASSIGNORS: Final[Mapping[str, Assign]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_ranges}
)
