"""How a setting's text is read and shown."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Value,
    at_least,
    between,
    each_of,
    one_of,
    text_of,
)
from millstream.model.config.errors import InvalidValue


def key(kind: ConfigType) -> ConfigKey:
    return ConfigKey("some.key", kind, None, "Nothing.")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.INT, "7", 7),
        (ConfigType.INT, " +7 ", 7),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.BOOLEAN, "TRUE", True),
        (ConfigType.BOOLEAN, " false", False),
        (ConfigType.DOUBLE, "0.5", 0.5),
        (ConfigType.DOUBLE, ".5f", 0.5),
        (ConfigType.DOUBLE, "1e-1", 0.1),
        (ConfigType.LIST, "", []),
        (ConfigType.LIST, " a , b ", ["a", "b"]),
        (ConfigType.LIST, "a,a", ["a"]),
        (ConfigType.STRING, " some text ", "some text"),
    ],
)
def test_text_is_read_as_java_reads_it(kind: ConfigType, text: str, value: Value) -> None:
    assert key(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.INT, ""),
        (ConfigType.INT, "x"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "9" * 5000),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, "1"),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "Infinity"),
        (ConfigType.DOUBLE, "1e999"),
        (ConfigType.DOUBLE, "0x1p-1"),
        (ConfigType.LIST, "a,,b"),
        (ConfigType.LIST, ","),
    ],
)
def test_text_of_another_type_is_refused_by_name(kind: ConfigType, text: str) -> None:
    with pytest.raises(InvalidValue, match=r"for some\.key: it must be "):
        key(kind).parse(text)


@pytest.mark.parametrize(
    ("rule", "good", "bad", "allowed"),
    [
        (at_least(1), "1", "0", "an int32, at least 1"),
        (between(1, 3), "3", "4", "an int32, between 1 and 3"),
    ],
)
def test_rule_bounds_a_number(rule: object, good: str, bad: str, allowed: str) -> None:
    bounded = key(ConfigType.INT)._replace(rule=rule)  # type: ignore[arg-type]
    assert bounded.parse(good) == int(good)
    with pytest.raises(InvalidValue) as caught:
        bounded.parse(bad)
    assert caught.value.allowed == allowed


def test_rule_names_the_texts() -> None:
    assert key(ConfigType.STRING)._replace(rule=one_of("a", "b")).parse("a") == "a"
    with pytest.raises(InvalidValue, match="one of a, b"):
        key(ConfigType.STRING)._replace(rule=one_of("a", "b")).parse("A")
    with pytest.raises(InvalidValue, match="a comma-separated list of any of a, b"):
        key(ConfigType.LIST)._replace(rule=each_of("a", "b")).parse("a,c")


def test_secret_is_not_in_the_error() -> None:
    secret = key(ConfigType.PASSWORD)._replace(rule=one_of("right"))
    with pytest.raises(InvalidValue) as caught:
        secret.parse("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5"),
        (["a", "b"], "a,b"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e-05, "1.0E-5"),
        (1.5e7, "1.5E7"),
        (123456789.0, "1.23456789E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-2.5e-7, "-2.5E-7"),
        (5.960464477539063e-08, "5.960464477539063E-8"),
    ],
)
def test_value_is_shown_as_java_shows_it(value: Value, text: str) -> None:
    assert text_of(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_shown_number_reads_back(value: float) -> None:
    assert key(ConfigType.DOUBLE).parse(text_of(value)) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_shown_whole_number_reads_back(value: int) -> None:
    assert key(ConfigType.LONG).parse(text_of(value)) == value


@given(st.sampled_from(list(ConfigType)), st.text())
def test_any_text_is_read_or_refused(kind: ConfigType, text: str) -> None:
    with suppress(InvalidValue):
        key(kind).parse(text)
