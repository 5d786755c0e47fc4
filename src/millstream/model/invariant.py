"""Numbered, executable invariants that survive `python -O`."""


class InvariantViolated(BaseException):
    """Our own bug. Never handled: whoever sees it at the outermost frame ends the process."""


def invariant(holds: bool, message: str, **facts: object) -> None:  # noqa: FBT001
    """Stop unless `holds`; `message` begins with the invariant's number."""
    if not holds:
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise InvariantViolated(f"{message} ({told})" if told else message)
