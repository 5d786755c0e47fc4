"""What a sink was asked for, checked on the driver and handed to every task.

Everything that can be wrong with options, columns and mode is told here, before any row is written
and without asking a broker: Spark makes writers more often than it uses them.
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
    """A way of writing that a log does not have."""


class ClientOptionInvalid(PipelineError):
    """A setting of the client that cannot be."""


class SinkWarning(UserWarning):
    """Legal, and surely not meant."""


_told: dict[str | tuple[str, type[Warning], int], int] = {}
"""Where the warnings module notes what it has shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Goes to the tasks by pickle."""

    settings: ClientSettings
    topic: str | None
    """For all rows; None: each row names its own."""
    projection: Projection
    guarantee: DeliveryGuarantee


def sink_plan(options: Mapping[str, str], schema: StructType, *, is_overwrite: bool) -> SinkPlan:
    """Raises PipelineError; warns of what is legal and odd."""
    asked = write_options(options)
    columns = write_columns(columns_of(schema), topic_option=asked.topic)
    if is_overwrite:
        raise ModeRefused(
            "a topic cannot be overwritten, records are only ever added: use mode('append'), or"
            " delete the topic before"
        )
    settings = _settings(asked.client_settings)
    for told in asked.warnings:
        _warn(told)
    if columns.ignored:
        _warn(f"columns are not written: {', '.join(columns.ignored)}")
    if settings.acks != -1:
        _warn("with kafka.acks other than all, rows that were written can be lost with a broker")
    return SinkPlan(
        settings=settings,
        topic=asked.topic,
        projection=projection_of(columns),
        guarantee=asked.guarantee,
    )


def _settings(given: Mapping[str, str]) -> ClientSettings:
    try:
        settings = ClientSettings.from_configs(given)
    except ConfigInvalid as error:
        raise ClientOptionInvalid(f"options {CLIENT_PREFIX}*: {error}") from None
    for name, _ in settings.others:
        _warn(
            f"option '{CLIENT_PREFIX}{name}' is ignored: the client has no such setting"
            f"{hint(name, CLIENT_KEYS)}"
        )
    return settings


def _warn(told: str) -> None:
    """Spark shows it on the driver's standard error, once per process that plans queries."""
    # Where it is raised says nothing to who wrote the query: a line of the user's is not on the
    # stack, which is that of a process of Spark's.
    warnings.warn_explicit(told, SinkWarning, 'format("millstream")', 0, registry=_told)
