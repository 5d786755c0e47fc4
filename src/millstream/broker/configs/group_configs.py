"""Settings of single groups, stored in the metadata beside those of brokers.

Their names there are such that no broker can have them.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from millstream.controller.image import GROUP_CONFIGS, ClusterImage

_NONE: Final[Mapping[str, str]] = {}


def name_of(group_id: str) -> str:
    """The name of the group's settings in the metadata."""
    return GROUP_CONFIGS + group_id


def configs_of(image: ClusterImage, group_id: str) -> Mapping[str, str]:
    """The settings of the group."""
    return image.broker_configs.get(name_of(group_id), _NONE)


def groups_in(image: ClusterImage) -> Iterator[str]:
    """The groups that have settings, by name."""
    for name in sorted(image.broker_configs):
        if name.startswith(GROUP_CONFIGS):
            yield name.removeprefix(GROUP_CONFIGS)
