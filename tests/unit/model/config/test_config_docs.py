"""The page about settings says what the definitions say, and what is defined is used."""

import ast
from pathlib import Path

import pytest

import millstream
from kits.broker.config_docs import PAGE, with_tables
from millstream.model.config.broker_keys import BROKER_KEYS, FALLBACKS
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.topic_keys import TOPIC_KEYS

SRC = Path(millstream.__file__).parent


def test_tables_of_the_page_are_those_of_the_definitions() -> None:
    text = PAGE.read_text()
    assert text == with_tables(text), "run: python tests/kits/broker/config_docs.py"


def test_page_without_a_table_is_noticed() -> None:
    with pytest.raises(ValueError, match="topic keys"):
        with_tables("# Nothing\n")


@pytest.mark.parametrize("name", [*TOPIC_KEYS, *INERT_TOPIC_REASONS, *BROKER_KEYS])
def test_key_is_on_the_page(name: str) -> None:
    if not (name in TOPIC_KEYS and TOPIC_KEYS[name].is_internal):
        assert f"| `{name}` |" in PAGE.read_text()


def test_every_broker_key_is_read_by_the_code() -> None:
    """A key that is shown works: no one could use one whose name is nowhere."""
    topic_defaults = {name for key in TOPIC_KEYS.values() for name in key.synonyms}
    fallbacks = {name for others in FALLBACKS.values() for name, _ in others}
    unread = set(BROKER_KEYS) - topic_defaults - fallbacks - _texts_in_code()
    assert not unread


def test_no_key_that_is_kept_for_later_is_read_by_the_code() -> None:
    """One that is read has an effect and must be shown. Others only write some into files."""
    assert not set(LATER_KEYS) & _texts_in_code(but_for=("cli", "testing"))


def _texts_in_code(*, but_for: tuple[str, ...] = ()) -> set[str]:
    """Every text of the package's modules, but for the definitions themselves."""
    passed_over = {SRC / "model" / "config", *(SRC / name for name in but_for)}
    found = set()
    for path in SRC.rglob("*.py"):
        if not passed_over & set(path.parents):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found
