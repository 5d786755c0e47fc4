"""Why a coordinator does not take a request; `broker/requests/error_codes.py` has the codes."""

from millstream.model.errors import OperatingError


class RequestRefused(OperatingError):
    """What a coordinator refuses; `reason` is for clients, where the code does not say it all."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason or None
        super().__init__(reason or (self.__doc__ or "").splitlines()[0])


class NotCoordinator(RequestRefused):
    """Another broker is the coordinator."""


class CoordinatorLoading(RequestRefused):
    """The coordinator is reading its partition of the internal topic."""


class CoordinatorNotAvailable(RequestRefused):
    """There is no coordinator now; ask again."""


class InvalidEntries(RequestRefused):
    """What the request asks for cannot be written as records."""
