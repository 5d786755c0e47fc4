"""Settings from files and from the environment."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.config.errors import InvalidConfig
from millstream.model.config.properties import (
    Settings,
    load_settings,
    parse_properties,
    read_properties,
    read_toml,
    render_properties,
    variable_of,
)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1\nb = 2\nc:3\nd 4\ne\t=\t5\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}),
        ("# a=1\n! b=2\n\n   \n  # c=3\n", {}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a==b:c", {"a": "=b:c"}),
        ("a = b # no comment", {"a": "b # no comment"}),
        ("  a=1  ", {"a": "1  "}),
        ("a=1,\\\n    2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=\\t\\n\\r\\f\\\\\\q", {"a": "\t\n\r\f\\q"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("log.dirs=C:\\\\data", {"log.dirs": "C:\\data"}),
    ],
)
def test_file_is_read_as_java_reads_it(text: str, settings: dict[str, str]) -> None:
    assert parse_properties(text) == settings


def test_lines_are_counted_over_comments_and_continuations() -> None:
    text = "# one\na=1\\\n  2\n\nb=3"
    assert [(one.name, one.origin) for one in read_properties(text)] == [
        ("a", "line 2"),
        ("b", "line 5"),
    ]


def test_broken_escape_is_told_with_its_line() -> None:
    with pytest.raises(InvalidConfig, match=r"line 2: \\u"):
        parse_properties("a=1\nb=\\u00x1")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXTS, TEXTS))
def test_written_file_reads_back(settings: dict[str, str]) -> None:
    assert parse_properties(render_properties(settings)) == settings


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidConfig):
        parse_properties(text)


# -- files on disk -----------------------------------------------------------------------------


def load(path: Path, text: str, environment: dict[str, str] | None = None) -> Settings:
    path.write_text(text)
    return load_settings(path, environment or {})


def test_file_of_kafka_is_taken_with_warnings(tmp_path: Path) -> None:
    """Keys without effect and unknown ones are warned about."""
    file = tmp_path / "server.properties"
    settings = load(
        file,
        "process.roles=broker\nnode.id=7\nnum.io.threads=8\nssl.key.password=x\n"
        "my.plugin.key=1\noffsets.topic.replication.factor=1\n",
    )
    assert settings.values["node.id"] == "7"
    assert len(settings.warnings) == 4
    assert f"{file}, line 1: process.roles has no effect here" in settings.warnings[0]
    assert "line 3: num.io.threads has no effect here: one event loop" in settings.warnings[1]
    assert "line 4: ssl.key.password" in settings.warnings[2]
    assert settings.warnings[3].endswith("line 5: setting 'my.plugin.key' is unknown and ignored")


def test_a_mistyped_name_comes_with_the_one_that_was_meant(tmp_path: Path) -> None:
    settings = load(
        tmp_path / "server.properties",
        "log.retenton.hours=1\nNum_Partitions=2\nnum.io.thread=3\n",
        {"MILLSTREAM_LOG_RETENTON_HOURS": "1"},
    )
    ends = [one.partition(" is unknown and ignored; ")[2] for one in settings.warnings]
    assert ends == [
        "did you mean MILLSTREAM_LOG_RETENTION_HOURS?",
        "did you mean log.retention.hours?",
        "did you mean num.partitions?",
        "did you mean num.io.threads?",
    ]


@pytest.mark.parametrize(
    "line", ["log.segment.bytes=12", "offsets.topic.replication.factor=none", "log.level=LOUD"]
)
def test_bad_value_is_told_with_file_line_and_what_is_allowed(tmp_path: Path, line: str) -> None:
    file = tmp_path / "server.properties"
    name, _, value = line.partition("=")
    with pytest.raises(InvalidConfig) as caught:
        load(file, f"# settings\n\n{line}\n")
    message = str(caught.value)
    assert message.startswith(f"{file}, line 3: ")
    assert name in message
    assert repr(value) in message
    assert "it must be" in message


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_settings(tmp_path / "none", {})


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a=\xff")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        load_settings(tmp_path / "f", {})


TOML = """
num.partitions = 3
listeners = ["PLAINTEXT://:9092", "OUT://:9093"]

[log]
dirs = "one,two"
segment.bytes = 2097152
cleaner = { enable = false, "min.cleanable.ratio" = 0.25 }
"""


def test_toml_file_is_chosen_by_its_suffix(tmp_path: Path) -> None:
    settings = load(tmp_path / "broker.toml", TOML)
    assert settings.values == {
        "num.partitions": "3",
        "listeners": "PLAINTEXT://:9092,OUT://:9093",
        "log.dirs": "one,two",
        "log.segment.bytes": "2097152",
        "log.cleaner.enable": "false",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    assert not settings.warnings


def test_bad_value_in_toml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    with pytest.raises(InvalidConfig, match=r"broker\.toml, line 2: .*log\.segment\.bytes"):
        load(file, "[log]\nsegment.bytes = 12\n")
    with pytest.raises(InvalidConfig, match=r"broker\.toml, not TOML: .*line 2"):
        load(file, "a = 1\nb = = 2\n")
    with pytest.raises(InvalidConfig, match=r"broker\.toml, a\.b: a setting is"):
        load(file, "[a]\nb = 1979-05-27\n")


def test_toml_place_is_the_name_where_no_line_can_be_found() -> None:
    assert read_toml('a = { b = "1" }')[0].origin == "a.b"


# -- the environment ---------------------------------------------------------------------------


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    environment = {"MILLSTREAM_LOG_SEGMENT_BYTES": "2097152", "PATH": "/bin"}
    settings = load(tmp_path / "f", "log.segment.bytes=1048576\nnum.partitions=2\n", environment)
    assert settings.values == {"log.segment.bytes": "2097152", "num.partitions": "2"}
    assert variable_of("log.segment.bytes") == "MILLSTREAM_LOG_SEGMENT_BYTES"


def test_bad_value_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"environment, MILLSTREAM_NUM_PARTITIONS: .*'0'"):
        load(tmp_path / "f", "", {"MILLSTREAM_NUM_PARTITIONS": "0"})


def test_variable_that_is_no_setting_is_a_warning(tmp_path: Path) -> None:
    environment = {
        "MILLSTREAM_LOG_SEGMNT_BYTES": "1",
        "MILLSTREAM_NUM_IO_THREADS": "1",
        "MILLSTREAM_KERNELS": "plain",
    }
    settings = load(tmp_path / "f", "", environment)
    assert settings.values == {}
    assert len(settings.warnings) == 2
    assert "MILLSTREAM_LOG_SEGMNT_BYTES" in settings.warnings[0]
    assert "num.io.threads has no effect" in settings.warnings[1]
