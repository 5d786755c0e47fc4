"""Where the repository and its parts are, from wherever a test lies."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PEERS: Final = ROOT / "build" / "peers"
"""What interop tests fetched and built."""
PROGRAMS: Final = ROOT / "tests" / "interop"
"""Sources of foreign programs."""
