"""Fate choosers decide what a power loss leaves: for `SimDisk.after_crash` and the explorer."""

from collections.abc import Iterable, Mapping

from millstream.runtime.randomness import Randomness
from millstream.testing.sim.durability import (
    DROP,
    KEEP,
    SECTOR_BYTES,
    ZEROS,
    Change,
    Fate,
    FateChooser,
    FateKind,
    Write,
    sectors_of,
)


def keep_all(_change: Change) -> Fate:
    """Nothing is lost."""
    return KEEP


def keep_none(_change: Change) -> Fate:
    """Only what was synced survives."""
    return DROP


def keep_only(changes: Iterable[Change]) -> FateChooser:
    """Exactly these survive, whole."""
    return by_table({change.number: KEEP for change in changes}, default=DROP)


def by_table(fates: Mapping[int, Fate], *, default: Fate) -> FateChooser:
    """Fates by change number."""
    return lambda change: fates.get(change.number, default)


def tears_of(write: Write) -> list[Fate]:
    """The ways a write can survive in part: by byte, by sector, by size only."""
    size = len(write.data)
    tears = [ZEROS]
    cuts = {1, size // 2, size - 1}
    cuts.update(start for start, _ in sectors_of(write))
    inner = sorted(cut for cut in cuts if 0 < cut < size)
    if len(inner) > 6:
        inner = [*inner[:3], *inner[-3:]]
    for cut in inner:
        tears.append(Fate(FateKind.PREFIX, cut))
        tears.append(Fate(FateKind.PREFIX_OF_FULL_SIZE, cut))
    sector_count = len(sectors_of(write))
    if sector_count > 1:
        every = (1 << sector_count) - 1
        tears += [Fate(FateKind.SECTORS, every & ~(1 << n)) for n in (0, sector_count - 1)]
    return tears


def random_fate(change: Change, randomness: Randomness) -> Fate:
    """Kept, lost or, for a write, torn: each often enough to meet the others."""
    if not isinstance(change, Write):
        return KEEP if randomness.chance(0.5) else DROP
    die = randomness.integer(0, 20)
    size = len(change.data)
    if die < 9:
        return KEEP
    if die < 15:
        return DROP
    if die < 16:
        return ZEROS
    if die < 19:
        kind = FateKind.PREFIX if die < 18 else FateKind.PREFIX_OF_FULL_SIZE
        sector_cut = randomness.integer(0, size // SECTOR_BYTES + 1) * SECTOR_BYTES
        return Fate(kind, randomness.choice([sector_cut, randomness.integer(0, size + 1)]))
    return Fate(FateKind.SECTORS, randomness.integer(0, 1 << len(sectors_of(change))))


def random_fates(randomness: Randomness) -> FateChooser:
    """Every change gets a random fate of its own."""
    return lambda change: random_fate(change, randomness)
