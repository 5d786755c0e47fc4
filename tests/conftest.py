"""For all tests: a machine that is busy with other things must not fail a test by being slow.

And tests of one group run in one process, in their order; or nothing runs. Tests that share servers
are such a group, or every process of pytest-xdist would start all of them.
"""

import signal

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a background job of a shell, and programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks at groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "tests/process/" in item.path.as_posix():
            used = item._fixtureinfo.name2fixturedefs.values()
            if any(one.scope == "module" for definitions in used for one in definitions):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist tells groups by a suffix of names, which not every pytest lets it write."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rpartition("]")[2]:
            raise pytest.UsageError(
                f"pytest {pytest.__version__} and pytest-xdist do not keep the group of"
                f" {item.nodeid} together; install what pyproject.toml asks for"
            )
