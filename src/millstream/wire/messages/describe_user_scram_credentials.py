"""DescribeUserScramCredentials (key 50): which SCRAM mechanisms users have, without secrets."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, int8, int16, int32, string
from millstream.wire.schema import Message, Struct


class UserName(Struct):
    name: str = string()


class DescribeUserScramCredentialsRequest(Message, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    users: list[UserName] | None = array(UserName, nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Message, key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
