"""What must hold in every round, whatever the attack: a decision over figures, and its line."""

from dataclasses import dataclass, field
from typing import Final

from millstream.model.limits import MIB
from millstream.testing.chaos.hostile.watch import Waits

P99_MAX_MS: Final = 100.0
"""Another client's produce with acks=all, from the moment a record is due."""
MEMORY_GROWTH_MAX: Final = 512 * MIB
"""Above the resident memory before the first attack: what requests may cost (the budget of buffered
requests), for each broker."""
MEMORY_LEFT_MAX: Final = 128 * MIB
"""What may be left of it afterwards: caches, and arenas that an allocator keeps."""
LOG_LINES_MAX: Final = 200
"""By all processes in one round; each kind of line once per address and interval."""


@dataclass
class RoundFigures:
    """What was measured in a round."""

    name: str
    waits: Waits
    grown_bytes: int = 0
    """At the most, of the broker or keeper with the most."""
    left_bytes: int = 0
    session_losses: int = 0
    log_lines: int = 0
    violations: list[str] = field(default_factory=list)
    """Things that were seen directly: a process that died, an answer that should be an error."""

    def judge(self, *, p99_max_ms: float = P99_MAX_MS) -> list[str]:
        """All that is wrong; nothing if the cluster stood it."""
        found = list(self.violations)
        if self.session_losses:
            found.append(f"{self.session_losses} sessions lost")
        if self.waits.p99 > p99_max_ms:
            found.append(f"p99 {self.waits.p99:.0f} ms, not {p99_max_ms:.0f}")
        if self.grown_bytes > MEMORY_GROWTH_MAX:
            found.append(f"memory +{self.grown_bytes // MIB} MiB")
        if self.left_bytes > MEMORY_LEFT_MAX:
            found.append(f"memory stays +{self.left_bytes // MIB} MiB")
        if self.log_lines > LOG_LINES_MAX:
            found.append(f"{self.log_lines} log lines")
        return found

    def line(self, wrong: list[str]) -> str:
        """A row of the table that a run prints."""
        return (
            f"{self.name:<50} worst {self.waits.worst:>7,.0f} ms  p99 {self.waits.p99:>7,.0f} ms"
            f"  p50 {self.waits.p50:>5,.0f} ms  peak {self.grown_bytes // MIB:>+6,} MiB"
            f"  after {self.left_bytes // MIB:>+5,} MiB  lines {self.log_lines:>6,}"
            f"  sessions lost {self.session_losses}  {'; '.join(wrong) or 'held'}"
        )
