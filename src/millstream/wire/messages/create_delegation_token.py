"""CreateDelegationToken (key 38): a token that logs in for its owner."""

from millstream.wire.api_keys import ApiKey
from millstream.wire.fields import array, blob, int16, int32, int64, string
from millstream.wire.primitives import Bytes
from millstream.wire.schema import Message, Struct


class CreatableRenewers(Struct):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Message, key=ApiKey.CREATE_DELEGATION_TOKEN):
    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, key=ApiKey.CREATE_DELEGATION_TOKEN):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: Bytes = blob()
    throttle_time_ms: int = int32()
