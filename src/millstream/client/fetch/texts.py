"""Conversions as in Spark's connector and Java, for Arrow columns and Python rows alike."""

import re
from typing import Final

MILLIS_MAX: Final = (2**63 - 1) // 1000
"""A time beyond it does not fit into microseconds and is clipped to this."""

_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd"


def java_text(key: bytes) -> str:
    """Decode as Java does: one replacement for a surrogate, else one for each part."""
    return _SURROGATE.sub(_REPLACEMENT.encode(), key).decode("utf-8", "replace")
