"""Shared by AlterConfigs and IncrementalAlterConfigs: requests to changes, outcomes to answers.

Each API has message classes of its own with the same fields.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from millstream.broker.configs.changes import KeyChange, Outcome, ResourceChange, alter_resources
from millstream.broker.requests.context import Context
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode


class Resource(Protocol):
    """A resource of a request."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


class Response(Protocol):
    """The class of one resource's answer."""

    def __init__(
        self, *, error_code: int, error_message: str | None, resource_type: int, resource_name: str
    ) -> None: ...


S = TypeVar("S", bound=Resource)
R = TypeVar("R", bound=Response)


async def alter(
    context: Context,
    changes: StepGenerator[list[ResourceChange]],
    response: type[R],
    *,
    validate_only: bool,
) -> list[R]:
    """Make the changes, or only check them; an answer for each, in their order."""
    wanted = await run_on_loop(changes)
    outcomes = await alter_resources(context, wanted, validate_only=validate_only)
    return await run_on_loop(_answer_steps(wanted, outcomes, response))


def change_steps(
    resources: Sequence[S], keys_of: Callable[[S], list[KeyChange]], *, is_whole: bool
) -> StepGenerator[list[ResourceChange]]:
    """The changes of a request, in steps."""
    changes = []
    pace = YieldCounter()
    for one in resources:
        keys = keys_of(one)
        changes.append(
            ResourceChange(one.resource_type, one.resource_name, keys, is_whole=is_whole)
        )
        if pace.is_due(1 + len(keys)):
            yield None
    return changes


def _answer_steps(
    resources: Sequence[Resource], outcomes: Sequence[Outcome], response: type[R]
) -> StepGenerator[list[R]]:
    answers = []
    pace = YieldCounter()
    for one, outcome in zip(resources, outcomes, strict=True):
        answers.append(_answer(one, outcome, response))
        if pace.is_due():
            yield None
    return answers


def all_failed(resources: Sequence[Resource], error: ErrorCode, response: type[R]) -> list[R]:
    """The same error for every resource."""
    return [_answer(one, Outcome(error, error.text), response) for one in resources]


def _answer(one: Resource, outcome: Outcome, response: type[R]) -> R:
    return response(
        error_code=outcome.code,
        error_message=outcome.text,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
