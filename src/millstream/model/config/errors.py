"""Why a setting is refused; each names the key and what is allowed."""

from collections.abc import Iterable

from millstream.model.errors import OperatingError


class InvalidConfig(OperatingError):
    """A setting, or a combination of settings, that is not allowed."""


class InvalidValue(InvalidConfig):
    """A value of the wrong type or outside its rule."""

    def __init__(self, name: str, value: str, *, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"invalid value {value!r} for {name}: it must be {allowed}")


class UnknownConfig(InvalidConfig):
    """No such key; the most similar known one is named."""

    def __init__(self, name: str, *, of: str, known: Iterable[str]) -> None:
        from millstream.model.config.nearest import hint  # only for a mistyped name

        self.name = name
        super().__init__(f"unknown {of} config name: {name}{hint(name, known)}")


class RefusedConfig(InvalidConfig):
    """A key of Kafka's that would have no effect here."""

    def __init__(self, name: str, *, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"{name} would have no effect here: {reason}")


class InvalidConfigRequest(OperatingError):
    """A malformed request: duplicate keys, another broker's settings, a read-only setting."""
