"""What the commands that talk to a cluster have in common: options, the client, how they end.

Numbers are read here and not by the library for command lines: it lets through what the protocol
has no room for, and its refusals take more than the one line that everything else takes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.failure import EXIT_INTERRUPTED, EXIT_PROBLEMS, complain, refuse

if TYPE_CHECKING:
    from millstream.client.blocking import BlockingClient
    from millstream.client.settings import ClientSettings

LOCAL: Final = "localhost:9092"
TIMEOUT_S: Final = 15.0
INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_TIMEOUT_S_MIN: Final = 0.001
_TIMEOUT_S_MAX: Final = 2_000_000
"""Whole milliseconds in 32 bits, as Kafka has them."""


def _seconds(text: str | float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not _TIMEOUT_S_MIN <= found <= _TIMEOUT_S_MAX:  # nor is nan
        refuse(f"--timeout {text}: seconds are wanted, {_TIMEOUT_S_MIN} to {_TIMEOUT_S_MAX}")
    return found


def whole_number(name: str, *, low: int, high: int) -> Callable[[str | int], int]:
    """What reads an option of that name; it refuses what is not in `[low, high]`."""

    def read(text: str | int) -> int:
        try:
            found = int(text)
        except ValueError:
            found = high + 1
        if not low <= found <= high:
            refuse(f"{name} {text}: a whole number is wanted, {low} to {high}")
        return found

    return read


def number_option(name: str, *more: str, low: int, high: int, told: str) -> Any:
    """An option for a whole number in `[low, high]`; `told` is its line of help."""
    read = whole_number(name, low=low, high=high)
    return typer.Option(name, *more, metavar="INTEGER", parser=read, help=told)


def partition_option(told: str) -> Any:
    """The option for the number of a partition."""
    return number_option("--partition", "-p", low=0, high=INT32_MAX, told=told)


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(f"topic {text!r}: the name is no UTF-8")
    return text


Servers = Annotated[
    str, typer.Option("--bootstrap-server", "-b", help="host:port of brokers, with commas between.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        parser=_seconds,
        help="How long brokers may take, or be away, until it is given up.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", parser=_name, help="Name of the topic.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", parser=_name, help="Names of topics.")]
SomeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", parser=_name, help="Names of topics; all without."),
]


def milliseconds(timeout_s: float) -> int:
    return max(1, round(timeout_s * 1000))


def client_settings(
    servers: str, timeout_s: float, configs: Mapping[str, object] | None = None
) -> "ClientSettings":
    """Those of a command; what cannot be is refused."""
    from millstream.client.errors import ConfigInvalid
    from millstream.client.settings import ClientSettings

    common = {
        "bootstrap.servers": servers,
        "client.id": "millstream-cli",
        "default.api.timeout.ms": milliseconds(timeout_s),
    }
    try:
        return ClientSettings.from_configs(common | dict(configs or {}))
    except ConfigInvalid as error:
        refuse(f"--bootstrap-server {servers}: {error}")


@contextmanager
def connected(settings: "ClientSettings") -> "Iterator[BlockingClient]":
    """A client for one command; what goes wrong with all of it is one line."""
    from millstream.client.blocking import BlockingClient
    from millstream.client.errors import ClientError

    client = BlockingClient(settings)
    is_interrupted = False
    try:
        yield client
    except ClientError as error:
        complain(str(error))
        raise typer.Exit(EXIT_PROBLEMS) from None
    except KeyboardInterrupt:
        # It may have come with one of the client's locks taken. So nothing of the client is waited
        # for: its thread ends with the process, and the system closes its connections.
        is_interrupted = True
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if not is_interrupted:
            client.close()
