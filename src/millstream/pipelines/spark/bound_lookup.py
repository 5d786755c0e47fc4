"""Bounds of a query into offsets, by asking: between `resolution`, which decides, and the look."""

from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.bounds import AtTimestamps, Bound, NoMatch
from millstream.pipelines.offsets_json import LATEST_OFFSET
from millstream.pipelines.options import ReadOptions
from millstream.pipelines.resolution import Wanted, settled, unmatched, wanted
from millstream.pipelines.spark.metadata_lookup import MetadataLookup, Selection


def resolved(
    look: MetadataLookup, asked: Wanted, *, no_match: NoMatch
) -> dict[TopicPartition, Offset]:
    """What a bound means in offsets; times that no record reaches are looked up once more."""
    answers = look.offsets(asked.lookups)
    late = dict.fromkeys(unmatched(asked, answers), LATEST_OFFSET)
    needs_latest = no_match is NoMatch.LATEST and late
    latest = look.offsets(late) if needs_latest else {}
    return settled(asked, answers, latest=latest, no_match=no_match)


def start_wanted(options: ReadOptions, selection: Selection) -> Wanted:
    """What to ask for the start of a query."""
    return wanted(options.start, selection.partitions, name=_option_name(options.start, "starting"))


def end_wanted(end: Bound, selection: Selection) -> Wanted:
    """What to ask for the end of a batch query."""
    return wanted(end, selection.partitions, name=_option_name(end, "ending"))


def _option_name(bound: Bound, side: str) -> str:
    match bound:
        case AtTimestamps():
            return f"{side}OffsetsByTimestamp"
        case _:
            return f"{side}Offsets"
