"""The request and response classes of an API, found by name; modules are imported on demand.

Importing all messages would delay the start of a broker by a tenth of a second.
"""

from collections.abc import Iterable
from importlib import import_module

from millstream.wire.api_keys import APIS, OWN_KEYS, ApiKey
from millstream.wire.schema import Message


def all_keys() -> Iterable[ApiKey]:
    """Every Kafka API in the catalogue, by number."""
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
