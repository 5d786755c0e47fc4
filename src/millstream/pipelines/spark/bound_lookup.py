"""Resolves the bounds of a query to offsets: `resolution` decides, `MetadataLookup` sends."""

from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.bounds import AtTimestamps, Bound, NoMatch
from millstream.pipelines.offsets_json import LATEST_OFFSET
from millstream.pipelines.options import ReadOptions
from millstream.pipelines.resolution import OffsetQuery, offset_query, resolve_offsets, unmatched
from millstream.pipelines.spark.metadata_lookup import MetadataLookup, Selection


def resolve_bound(
    lookup: MetadataLookup, query: OffsetQuery, *, no_match: NoMatch
) -> dict[TopicPartition, Offset]:
    """The offsets of a bound; for times that no record reaches, the latest is looked up."""
    answers = lookup.offsets(query.lookups)
    late = dict.fromkeys(unmatched(query, answers), LATEST_OFFSET)
    needs_latest = no_match is NoMatch.LATEST and late
    latest = lookup.offsets(late) if needs_latest else {}
    return resolve_offsets(query, answers, latest=latest, no_match=no_match)


def start_query(options: ReadOptions, selection: Selection) -> OffsetQuery:
    """What to look up for the start of a query."""
    return offset_query(
        options.start, selection.partitions, name=_option_name(options.start, "starting")
    )


def end_query(end: Bound, selection: Selection) -> OffsetQuery:
    """What to look up for the end of a batch query."""
    return offset_query(end, selection.partitions, name=_option_name(end, "ending"))


def _option_name(bound: Bound, side: str) -> str:
    match bound:
        case AtTimestamps():
            return f"{side}OffsetsByTimestamp"
        case _:
            return f"{side}Offsets"
