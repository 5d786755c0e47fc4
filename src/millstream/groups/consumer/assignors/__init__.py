"""Server-side assignors, by the names that `group.consumer.assignors` has them under.

None of them looks at racks: Kafka took that out before 4.0, and so the rack of a member changes
nothing (KAFKA-17747 brings a hash of racks only to notice that they changed).
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
