"""Subscribers to changes of the metadata, before and after a change is visible."""

from collections.abc import Callable, Sequence

from millstream.controller.image import ImageChange
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import StepGenerator

Subscriber = Callable[[ImageChange], StepGenerator[None] | None]
"""Handles the change at once, or in steps."""


class Subscribers:
    """All of them are notified of every change, also after one failed."""

    def __init__(self) -> None:
        self._preparers: list[Subscriber] = []
        self._subscribers: list[Subscriber] = []

    def add(self, callback: Subscriber, *, prepare: Subscriber | None = None) -> None:
        """`prepare` is called before the change is visible in the image, `callback` after."""
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
    """Returns the first error, once all are notified."""
    failure: Exception | None = None
    for callback in list(callbacks):
        try:
            steps = callback(change)
            if steps is not None:
                yield from steps
        except Exception as error:  # noqa: BLE001 - notify the others; reported later
            end_if_fatal(error)
            failure = failure or error
    return failure
