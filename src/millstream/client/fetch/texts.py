"""What Spark's connector and Java make of a record, for columns and plain rows alike."""

import re
from typing import Final

MILLIS_MAX: Final = (2**63 - 1) // 1000
"""A time beyond it, which microseconds cannot hold, is taken for this one."""

_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd"


def java_text(key: bytes) -> str:
    """As Java reads bytes: one replacement for a surrogate, else one for each part."""
    return _SURROGATE.sub(_REPLACEMENT.encode(), key).decode("utf-8", "replace")
