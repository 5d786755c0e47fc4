"""Numbered, executable invariants that survive `python -O`."""


class InvariantViolated(BaseException):
    """Our own bug. Never handled: the outermost frame that catches it ends the process."""


def invariant(holds: bool, message: str, **facts: object) -> None:  # noqa: FBT001
    """Stop unless `holds`; `message` begins with the invariant's number."""
    if not holds:
        details = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise InvariantViolated(f"{message} ({details})" if details else message)
