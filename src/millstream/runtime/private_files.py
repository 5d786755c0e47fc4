"""Small files for this user only: settings, process ids, secrets."""

import os
from typing import Final

_MODE: Final = 0o600


def write_private(path: str | os.PathLike[str], text: str) -> None:
    """Write the whole file. A new one is for its owner only, whatever the umask; a symbolic link
    is an OSError: its target may be anybody's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, _MODE), "w", encoding="utf-8") as file:
        file.write(text)
