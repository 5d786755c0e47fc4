"""The plan of a sink, checked on the driver and passed to every task.

Everything that can be wrong with options, columns and mode raises here, before any row is written
and without a request to a broker: Spark creates writers more often than it uses them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from millstream.client.errors import ConfigInvalid
from millstream.client.setting_keys import CLIENT_KEYS
from millstream.client.settings import ClientSettings
from millstream.model.config.nearest import hint
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.option_rules import CLIENT_PREFIX, DeliveryGuarantee
from millstream.pipelines.options import write_options
from millstream.pipelines.schema import write_columns
from millstream.pipelines.spark.write_columns import Projection, columns_of, projection_of


class ModeRefused(PipelineError):
    """A save mode that a log cannot support."""


class ClientOptionInvalid(PipelineError):
    """An invalid setting of the client."""


class SinkWarning(UserWarning):
    """Something legal that is probably unintended."""


_shown: dict[str | tuple[str, type[Warning], int], int] = {}
"""Registry of the warnings module: what it has shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Pickled to the tasks."""

    settings: ClientSettings
    topic: str | None
    """For all rows; None: each row names its own."""
    projection: Projection
    guarantee: DeliveryGuarantee


def sink_plan(options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> SinkPlan:
    """Raises PipelineError; warns of what is legal but probably unintended."""
    parsed = write_options(options)
    columns = write_columns(columns_of(schema), topic_option=parsed.topic)
    if is_overwrite:
        raise ModeRefused(
            "a topic cannot be overwritten, records can only be appended: use mode('append'), or"
            " delete the topic first"
        )
    settings = _settings(parsed.client_settings)
    for text in parsed.warnings:
        _warn(text)
    if columns.ignored:
        _warn(f"columns are not written: {', '.join(columns.ignored)}")
    if settings.acks != -1:
        _warn("kafka.acks is not all: written rows can be lost when a broker fails; set it to all")
    return SinkPlan(
        settings=settings,
        topic=parsed.topic,
        projection=projection_of(columns),
        guarantee=parsed.guarantee,
    )


def _settings(given: Mapping[str, str]) -> ClientSettings:
    try:
        settings = ClientSettings.from_configs(given)
    except ConfigInvalid as error:
        raise ClientOptionInvalid(f"options {CLIENT_PREFIX}*: {error}") from None
    for name, _ in settings.others:
        _warn(
            f"option '{CLIENT_PREFIX}{name}' is ignored: unknown client setting"
            f"{hint(name, CLIENT_KEYS)}"
        )
    return settings


def _warn(text: str) -> None:
    """Spark shows it on the driver's standard error, once per process that plans queries."""
    # The line where it is raised means nothing to the author of the query, whose code is not on
    # the stack of this process of Spark.
    warnings.warn_explicit(text, SinkWarning, 'format("millstream")', 0, registry=_shown)
