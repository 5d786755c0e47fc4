"""The source's readers against our broker, without a Spark session; see `source_stories`."""

import pytest

from kits.spark.source_kit import World
from kits.spark.source_stories import STORIES, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(servers: str, story: Story) -> None:
    story(World(servers, story.__name__.replace("_", "-")))
