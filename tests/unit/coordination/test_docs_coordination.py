"""docs/coordination.md says what the code does."""

import re

from kits.paths import DOCS
from millstream.coordination import port
from millstream.coordination.keeper import limits
from millstream.coordination.keeper.words import WORDS
from millstream.model.limits import KIB, MIB

PAGE = (DOCS / "coordination.md").read_text()


def test_the_words_are_all_there() -> None:
    line = next(part for part in PAGE.split("\n\n") if part.startswith("The supported words are"))
    assert set(re.findall(r"`(\w+)`", line)) == {word.decode() for word in WORDS}


def test_the_limits_are_the_code_s() -> None:
    told = [
        (limits.FRAME_BYTES_MAX == MIB - 1, "1 MiB - 1"),
        (limits.DATA_BYTES_MAX == 512 * MIB, "512 MiB"),
        (limits.NODE_BYTES == 650, "650 bytes for each"),
        (limits.ACL_ENTRIES_MAX == 32, "| access list of one node | 32 entries of"),
        (limits.ACL_IDENTITY_CHARACTERS_MAX == 256, "of up to 256 characters, then InvalidACL"),
        (limits.ACL_ENTRY_BYTES == 500, "each after the first counts 500 bytes"),
        (limits.AUTHENTICATED_MAX == 1_000, "| connections | 1,000, then new ones are closed |"),
        (limits.SESSIONS_MAX == 20_000, "| sessions | 20,000, then"),
        (limits.EPHEMERALS_PER_SESSION_MAX == 20_000, "one session | 20,000, then"),
        (limits.WATCHES_PER_CONNECTION_MAX == 200_000, "200,000, then it is closed"),
        (limits.OUTSTANDING_PER_CONNECTION_MAX == 1_000, "1,000 and 8 MiB, more are not read"),
        (limits.PENDING_BYTES_PER_CONNECTION_MAX == 8 * MIB, "1,000 and 8 MiB, more are not read"),
        (limits.OUTPUT_BYTES_MAX == 32 * MIB, "32 MiB, then it is closed"),
        (limits.AUTHENTICATED_PER_ADDRESS_MAX == 500, "| connections | 500, then new"),
        (limits.SESSIONS_PER_ADDRESS_MAX == 5_000, "since the start of the keeper | 5,000, then"),
        (limits.DATA_BYTES_PER_ADDRESS_MAX == 256 * MIB, "since then | 256 MiB with"),
        (limits.WATCHES_PER_ADDRESS_MAX == 1_000_000, "| watches | 1,000,000, then"),
        (limits.PENDING_BYTES_PER_ADDRESS_MAX == 64 * MIB, "| 64 MiB, more are not read |"),
        (limits.OUTPUT_BYTES_PER_ADDRESS_MAX == 128 * MIB, "| 128 MiB, then"),
        (limits.UNAUTHENTICATED_MAX == 1_000, "| connections | 1,000, and 500 of one address"),
        (limits.UNAUTHENTICATED_PER_ADDRESS_MAX == 500, "1,000, and 500 of one address"),
        (limits.HANDSHAKE_TIMEOUT_MS == 10_000, "| a connection without a session | 10 s |"),
        (limits.AUTHENTICATION_TIMEOUT_MS == 30_000, "| a connection without a proof | 30 s |"),
        (limits.UNAUTHENTICATED_FRAME_BYTES_MAX == 4 * KIB, "| one request | 4 KiB, then"),
        (limits.REFUSED_REQUESTS_MAX == 100, "NoAuth | 100, then the connection is closed"),
        (limits.LOG_ROLL_BYTES == 16 * MIB, "A log of 16 MiB is closed (`--snapshot-log-bytes`)"),
        (port.MULTI_OPERATIONS_MAX == 500, "at most 500 operations"),
        (port.MULTI_BYTES_MAX == 512 * KIB, "512 KiB"),
    ]
    assert [text for holds, text in told if not (holds and text in PAGE)] == []
