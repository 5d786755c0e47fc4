"""Why a setting is refused; each says the key, and what would have been right."""

from collections.abc import Iterable

from millstream.model.errors import OperatingError


class InvalidConfig(OperatingError):
    """A setting, or several together, that cannot be."""


class InvalidValue(InvalidConfig):
    """A value of the wrong type or outside its rule."""

    def __init__(self, name: str, value: str, *, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"invalid value {value!r} for {name}: it must be {allowed}")


class UnknownConfig(InvalidConfig):
    """No such key; of the known ones the nearest is named."""

    def __init__(self, name: str, *, of: str, known: Iterable[str]) -> None:
        from millstream.model.config.nearest import hint  # only where somebody mistyped

        self.name = name
        super().__init__(f"unknown {of} config name: {name}{hint(name, known)}")


class RefusedConfig(InvalidConfig):
    """A key of Kafka's that would have no effect here."""

    def __init__(self, name: str, *, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"{name} would have no effect here: {reason}")


class InvalidConfigRequest(OperatingError):
    """A request that is wrong as such: keys twice, another broker's settings, a fixed setting."""
