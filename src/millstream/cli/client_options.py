"""Common parts of the commands that talk to a cluster: options, the client, exit codes.

Numbers are parsed here and not by Typer: it lets through what does not fit the protocol's integer
types, and its errors take more than the one line that all other errors take.
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
"""Milliseconds must fit an int32, as in Kafka."""


def _seconds(text: str | float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not _TIMEOUT_S_MIN <= found <= _TIMEOUT_S_MAX:  # nor is nan
        refuse(
            f"--timeout {text}: must be a number of seconds between {_TIMEOUT_S_MIN} and"
            f" {_TIMEOUT_S_MAX}"
        )
    return found


def integer(name: str, *, low: int, high: int) -> Callable[[str | int], int]:
    """A parser for the option of that name; it refuses what is not in `[low, high]`."""

    def read(text: str | int) -> int:
        try:
            found = int(text)
        except ValueError:
            found = high + 1
        if not low <= found <= high:
            refuse(f"{name} {text}: must be an integer between {low} and {high}")
        return found

    return read


def number_option(name: str, *more: str, low: int, high: int, help_text: str) -> Any:
    """An option for an integer in `[low, high]`."""
    read = integer(name, low=low, high=high)
    return typer.Option(name, *more, metavar="INTEGER", parser=read, help=help_text)


def partition_option(help_text: str) -> Any:
    """The option `--partition`."""
    return number_option("--partition", "-p", low=0, high=INT32_MAX, help_text=help_text)


def _name(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(f"topic {text!r}: the name is not valid UTF-8")
    return text


Servers = Annotated[
    str, typer.Option("--bootstrap-server", "-b", help="Comma-separated host:port of brokers.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        parser=_seconds,
        help="How long to wait for unreachable or slow brokers before giving up.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", parser=_name, help="Name of the topic.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", parser=_name, help="Names of topics.")]
SomeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", parser=_name, help="Names of topics; default: all."),
]


def milliseconds(timeout_s: float) -> int:
    return max(1, round(timeout_s * 1000))


def client_settings(
    servers: str, timeout_s: float, configs: Mapping[str, object] | None = None
) -> "ClientSettings":
    """The client settings of a command; invalid ones are refused."""
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
    """A client for one command; a ClientError is printed as one line."""
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
        # It may have come while one of the client's locks was held, so the client is not waited
        # for: its thread ends with the process, and the system closes its connections.
        is_interrupted = True
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if not is_interrupted:
            client.close()
