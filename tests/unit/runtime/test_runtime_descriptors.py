"""The shares of the process's descriptors that segment files and connections get."""

import resource

from millstream.runtime import descriptors


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        assert descriptors.raise_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_half_of_them_may_be_segment_files_within_bounds() -> None:
    assert descriptors.segment_files_max(20_000, lowest=512) == 10_000
    assert descriptors.segment_files_max(300, lowest=512) == 512
    assert descriptors.segment_files_max(10**9, lowest=512) == descriptors.SEGMENT_FILES_MAX


def test_connections_leave_descriptors_for_everything_else() -> None:
    assert descriptors.connections_max(20_000, 10_000) == 10_000 - descriptors.OTHERS_MAX
    assert descriptors.connections_max(300, 512) == 75
    assert descriptors.connections_max(-1, 32_768) > 10**9, "the system has no limit"
