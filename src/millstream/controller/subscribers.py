"""Who hears of a change of metadata, before it shows and after."""

from collections.abc import Callable, Sequence

from millstream.controller.image import ImageChange
from millstream.runtime.scheduler import StepGenerator

Subscriber = Callable[[ImageChange], StepGenerator[None] | None]
"""Does what the change asks of it at once, or in steps."""


class Subscribers:
    """All of them hear of every change, also after one failed."""

    def __init__(self) -> None:
        self._preparers: list[Subscriber] = []
        self._subscribers: list[Subscriber] = []

    def add(self, callback: Subscriber, *, prepare: Subscriber | None = None) -> None:
        """`prepare` is called before the change shows in the image, `callback` after."""
        self._subscribers.append(callback)
        if prepare is not None:
            self._preparers.append(prepare)

    def prepare_steps(self, change: ImageChange) -> StepGenerator[Exception | None]:
        return _notify_steps(self._preparers, change)

    def notify_steps(self, change: ImageChange) -> StepGenerator[Exception | None]:
        return _notify_steps(self._subscribers, change)


def _notify_steps(
    callbacks: Sequence[Subscriber], change: ImageChange
) -> StepGenerator[Exception | None]:
    """The first error, once all have heard."""
    failure: Exception | None = None
    for callback in list(callbacks):
        try:
            steps = callback(change)
            if steps is not None:
                yield from steps
        except Exception as error:  # noqa: BLE001 - the others must hear of it; told later
            failure = failure or error
    return failure
