"""Settings from outside: Java's properties files, TOML files, and the environment.

An unknown key is a warning, as in Kafka, whose operators keep settings of plug-ins in the same
file; a bad value is an error that says where it was read and what is allowed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.model.config.errors import InvalidConfig, InvalidValue
from millstream.model.config.inert_reasons import INERT_BROKER_REASONS, inert_broker_reason
from millstream.model.config.later_keys import LATER_KEYS

ENVIRONMENT_PREFIX: Final = "MILLSTREAM_"
NOT_SETTINGS: Final = frozenset({"MILLSTREAM_KERNELS", "MILLSTREAM_REQUIRE_KERNELS"})
"""Environment variables with our prefix that are not settings."""

_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


class Setting(NamedTuple):
    """One setting and where it was found."""

    name: str
    value: str
    origin: str
    """"line 7", or the environment's variable."""


class Settings(NamedTuple):
    """What a broker is started with."""

    values: dict[str, str]
    warnings: list[str]


# -- all together ----------------------------------------------------------------------------------


def read_settings_text(path: Path) -> str:
    """Raises InvalidConfig where the file is not UTF-8, or OSError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not UTF-8: {error}") from None


def load_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """The file's settings, TOML by its suffix, under those of the environment.

    Raises InvalidConfig, or OSError where the file cannot be read.
    """
    text = read_settings_text(path)
    read = read_toml if path.suffix.lower() == ".toml" else read_properties
    try:
        found = [one._replace(origin=f"{path}, {one.origin}") for one in read(text)]
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}, {error}") from None
    overrides, warnings = from_environment(environment)
    for one in found:
        warnings.extend(_check(one))
    for one in overrides:
        _check(one)
    return Settings({one.name: one.value for one in [*found, *overrides]}, warnings)


def check_settings(values: Mapping[str, str], origin: str) -> list[str]:
    """Warnings about settings that were passed directly; raises InvalidConfig for a bad value."""
    settings = [Setting(name, value, origin) for name, value in values.items()]
    return [warning for setting in settings for warning in _check(setting)]


def _check(setting: Setting) -> list[str]:
    """Warnings about a setting; raises InvalidConfig for a value that is not allowed."""
    name, value, origin = setting
    key = BROKER_KEYS.get(name) or LATER_KEYS.get(name)
    if key is not None:
        try:
            key.parse(value)
        except InvalidValue as error:
            raise InvalidConfig(f"{origin}: {error}") from None
        return []
    reason = inert_broker_reason(name)
    if reason is not None:
        return [f"{origin}: {name} has no effect here: {reason}"]
    from millstream.model.config.nearest import hint  # only for a mistyped name

    near = hint(name, (*BROKER_KEYS, *INERT_BROKER_REASONS))
    return [f"{origin}: setting {name!r} is unknown and ignored{near}"]


def from_environment(environment: Mapping[str, str]) -> tuple[list[Setting], list[str]]:
    """Settings such as MILLSTREAM_LOG_SEGMENT_BYTES, and warnings about unknown names."""
    names = {variable_of(name): name for name in (*INERT_BROKER_REASONS, *LATER_KEYS, *BROKER_KEYS)}
    found, warnings = [], []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = names.get(variable)
        if name is None:
            warnings.append(_unknown_variable(variable, names.values()))
        elif name in INERT_BROKER_REASONS:
            warnings.append(
                f"environment, {variable}: {name} has no effect here: {INERT_BROKER_REASONS[name]}"
            )
        else:
            found.append(Setting(name, value, f"environment, {variable}"))
    return found, warnings


def _unknown_variable(variable: str, names: Iterable[str]) -> str:
    from millstream.model.config.nearest import nearest

    near = nearest(variable.removeprefix(ENVIRONMENT_PREFIX), names)
    meant = f"; did you mean {variable_of(near)}?" if near is not None else ""
    return f"environment: variable {variable} is unknown and ignored{meant}"


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


# -- properties ------------------------------------------------------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    """The file's settings; the last one wins where a key occurs twice, as in Java."""
    return {one.name: one.value for one in read_properties(text)}


def render_properties(settings: Mapping[str, str]) -> str:
    """A file that reads back as these settings."""
    lines = [
        f"{_escape(name, is_key=True)}={_escape(value, is_key=False)}\n"
        for name, value in settings.items()
    ]
    return "".join(lines)


def read_properties(text: str) -> Iterator[Setting]:
    """Settings in the order of their lines; raises InvalidConfig for a broken escape."""
    for number, line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_SPACE)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_SPACE)
        origin = f"line {number}"
        yield Setting(_unescape(line[:end], origin), _unescape(rest, origin), origin)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, continued ones joined, with their first numbers."""
    pending, first = "", 0
    is_continued = False
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.lstrip(_SPACE)
        if not is_continued:
            if not line or line[0] in "#!":
                continue
            pending, first = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        is_continued = backslashes % 2 == 1
        pending += line[:-1] if is_continued else line
        if not is_continued and pending:
            yield first, pending
    if is_continued and pending:
        yield first, pending


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
        elif line[position] in "=:" or line[position] in _SPACE:
            return position
        else:
            position += 1
    return len(line)


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter != "\\" or position == len(text):
            parts.append(letter if letter != "\\" else "")
            continue
        letter = text[position]
        position += 1
        if letter == "u":
            if not _UNICODE.fullmatch(text, position, position + 4):
                raise InvalidConfig(f"{origin}: \\u must be followed by four hexadecimal digits")
            letter = chr(int(text[position : position + 4], 16))
            position += 4
        else:
            letter = _ESCAPES.get(letter, letter)
        parts.append(letter)
    # Java writes characters beyond 16 bits as two halves.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, is_key: bool) -> str:
    special = "\\=:#! " if is_key else "\\"
    parts = []
    for position, letter in enumerate(text):
        if letter in special or (letter in " #!" and position == 0):
            parts.append("\\" + letter)
        elif letter in "\t\n\r\f":
            parts.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[letter])
        else:
            parts.append(letter)
    return "".join(parts)


# -- TOML ------------------------------------------------------------------------------------------


def read_toml(text: str) -> list[Setting]:
    """Settings of a TOML file; `[log]` with `segment.bytes` is `log.segment.bytes`."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"not TOML: {error}") from None
    lines = text.splitlines()
    return [
        Setting(name, _toml_text(name, value), _toml_origin(name, lines))
        for name, value in _flatten(document, "")
    ]


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _toml_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, str | int) for one in value):
        return ",".join(_toml_text(name, one) for one in value)
    raise InvalidConfig(f"{name}: a setting is a string, a number, a boolean or a list of strings")


def _toml_origin(name: str, lines: list[str]) -> str:
    """The line that sets the key, found by the longest end of the key's name that begins one."""
    parts = name.split(".")
    for start in range(len(parts)):
        wanted = ".".join(parts[start:])
        for number, line in enumerate(lines, 1):
            written = line.partition("=")[0].replace('"', "").replace("'", "").replace(" ", "")
            if "=" in line and written == wanted:
                return f"line {number}"
    return name
