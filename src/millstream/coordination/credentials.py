"""The cluster's secret, and the identity that it proves to the coordination service.

ZooKeeper's `digest` scheme: a client sends `user:password`, and access lists name the user with a
hash of both. The password travels as it is: on a network that others can read, use a tunnel.
"""

import base64
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from millstream.model.errors import OperatingError
from millstream.observe.redaction import Secret

SCHEME: Final = "digest"
USER: Final = "millstream"
"""In credentials of brokers and in access lists: the same in every cluster."""

SECRET_BYTES_MAX: Final = 1024
"""Of a secret's file; a longer one is another file."""

SECRET_CHARACTERS_MIN: Final = 16
"""Access lists have a hash of it, by which a short one can be found."""


class BadSecretFile(OperatingError):
    """A file that has no secret in it."""


class Credentials(NamedTuple):
    """What the brokers of a cluster prove their identity with."""

    secret: Secret

    def packet(self) -> str:
        """What a client sends."""
        return f"{USER}:{self.secret.reveal()}"

    def identity(self) -> str:
        """As in access lists of the scheme `digest`."""
        return digest_identity(self.packet().encode())


def digest_identity(packet: bytes) -> str:
    """The identity of a client that sends it, as ZooKeeper's `generateDigest` computes it."""
    # The hash is ZooKeeper's: clients and servers that exist know no other. A secret of random
    # bytes cannot be found by it.
    digest = hashlib.sha1(packet, usedforsecurity=False).digest()
    user = packet.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(digest).decode()}"


def parse_secret(data: bytes, name: str) -> Secret:
    """The content of a secret's file; raises BadSecretFile."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    is_word = text.isprintable() and " " not in text
    if len(text) < SECRET_CHARACTERS_MIN or len(data) > SECRET_BYTES_MAX or not is_word:
        raise BadSecretFile(
            f"{name}: the cluster's secret must be one word of {SECRET_CHARACTERS_MIN} to"
            f" {SECRET_BYTES_MAX} printable ASCII characters"
        )
    return Secret(text)


def read_credentials(path: str) -> Credentials:
    """Of a broker; raises BadSecretFile, OSError."""
    with Path(path).open("rb") as file:
        return Credentials(parse_secret(file.read(SECRET_BYTES_MAX + 1), path))
