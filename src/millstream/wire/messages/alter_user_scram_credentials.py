"""AlterUserScramCredentials (key 51): set or remove SCRAM credentials of users."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, blob, int8, int16, int32, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message, Struct


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: Bytes = blob()
    salted_password: Bytes = blob()


class AlterUserScramCredentialsRequest(Message, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class AlterUserScramCredentialsResponse(Message, key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
