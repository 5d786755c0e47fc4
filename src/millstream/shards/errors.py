"""Why a coordinator refuses a request; `broker/requests/error_codes.py` has the codes."""

from millstream.model.errors import OperatingError


class RequestRefused(OperatingError):
    """The base class; `reason` is for clients, where the code is not enough."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason or None
        super().__init__(reason or (self.__doc__ or "").splitlines()[0])


class NotCoordinator(RequestRefused):
    """Another broker is the coordinator."""


class CoordinatorLoading(RequestRefused):
    """The coordinator is reading its partition of the internal topic."""


class CoordinatorNotAvailable(RequestRefused):
    """There is no coordinator now; try again."""


class InvalidEntries(RequestRefused):
    """The request cannot be written as records."""
