"""Where the settings of single groups are: in the metadata, beside those of brokers.

The metadata know them by a name that no broker can have.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from millstream.controller.image import GROUP_CONFIGS, ClusterImage

_NONE: Final[Mapping[str, str]] = {}


def name_of(group_id: str) -> str:
    """By which the metadata know the group's settings."""
    return GROUP_CONFIGS + group_id


def configs_of(image: ClusterImage, group_id: str) -> Mapping[str, str]:
    """What was set for the group."""
    return image.broker_configs.get(name_of(group_id), _NONE)


def groups_in(image: ClusterImage) -> Iterator[str]:
    """The groups that have settings, by name."""
    for name in sorted(image.broker_configs):
        if name.startswith(GROUP_CONFIGS):
            yield name.removeprefix(GROUP_CONFIGS)
