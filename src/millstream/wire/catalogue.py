"""Which class is the request or response of an API: found by name, its module imported on demand.

A broker that imported all messages at its start would be ready a tenth of a second later.
"""

from collections.abc import Iterable
from importlib import import_module

from millstream.wire.api_keys import APIS, OWN_KEYS, ApiKey
from millstream.wire.schema import Message


def all_keys() -> Iterable[ApiKey]:
    """Every API of Kafka's in the catalogue, by number."""
    return [key for key in APIS if key not in OWN_KEYS]


def versions_of(key: ApiKey) -> range:
    """All versions of an API that we can encode; imports no message."""
    return APIS[key].versions


def api_name(key: ApiKey) -> str:
    """`DESCRIBE_LOG_DIRS` is DescribeLogDirs."""
    return key.name.title().replace("_", "")


def request_type(key: ApiKey) -> type[Message]:
    return _message(key, "Request")


def response_type(key: ApiKey) -> type[Message]:
    return _message(key, "Response")


def _message(key: ApiKey, suffix: str) -> type[Message]:
    module = import_module(f"millstream.wire.messages.{key.name.lower()}")
    found: type[Message] = getattr(module, api_name(key) + suffix)
    return found
