"""Brokers prove who they are, on every connection between them, before anything else is said.

Both sides: `Prover` on a connection that this broker opens, `Authenticator` for those that others
open. See `broker/requests/broker_proof.py` for what is proven, ADR 0026 for why.
"""

from collections.abc import Callable
from typing import NamedTuple

from millstream.broker.cluster.broker_secrets import BrokerSecrets
from millstream.broker.requests.between_brokers import BrokerUnverifiable, NotABroker
from millstream.broker.requests.broker_proof import (
    NONCE_BYTES,
    Challenge,
    Claim,
    Side,
    is_proven,
    proof_of,
)
from millstream.broker.requests.context import Peer
from millstream.controller.cluster.registration import Registered
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.rpc.connection import Connection
from millstream.rpc.errors import ConnectFailed
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.authenticate_broker import (
    AuthenticateBrokerRequest,
    AuthenticateBrokerResponse,
)
from millstream.wire.primitives import MalformedFrame

log = get_logger("millstream.broker.cluster.authentication")


class Prover:
    """Proves this broker to those it connects to, and lets them prove themselves."""

    def __init__(
        self,
        broker_id: BrokerId,
        incarnation: Callable[[], Registered | None],
        randomness: Randomness,
        client_log: ClientLog,
        *,
        timeout_s: float,
    ) -> None:
        """`incarnation` is the current one, or the last while this broker is not registered."""
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._randomness = randomness
        self._client_log = client_log
        self._timeout_s = timeout_s

    async def prove(self, connection: Connection) -> None:
        """Returns when both sides are proven; raises RpcError, the connection is useless then."""
        held = self._incarnation()
        if held is None:
            raise ConnectFailed(connection.address, "this broker is not registered yet")
        claim = Claim(
            self._broker_id,
            held.epoch,
            held.cluster_id,
            connection.address,
            self._randomness.secret(NONCE_BYTES),
        )
        answer = await self._send(connection, claim, b"")
        challenge = Challenge(claim, bytes(answer.nonce))
        if not is_proven(bytes(answer.proof), held.secret, Side.ANSWERING, challenge):
            raise self._failure(connection, "it did not prove to be a broker of this cluster")
        await self._send(connection, claim, proof_of(held.secret, Side.CONNECTING, challenge))

    async def _send(
        self, connection: Connection, claim: Claim, proof: bytes
    ) -> AuthenticateBrokerResponse:
        request = AuthenticateBrokerRequest(
            broker_id=claim.broker_id,
            broker_epoch=claim.epoch,
            cluster_id=claim.cluster_id,
            address=claim.address,
            nonce=claim.nonce,
            proof=proof,
        )
        try:
            answer: AuthenticateBrokerResponse = await connection.send(
                request, timeout_s=self._timeout_s
            )
        except MalformedFrame as error:
            raise ConnectFailed(connection.address, f"malformed answer: {error}") from error
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            raise self._failure(connection, f"it refused this broker: {code}")
        return answer

    def _failure(self, connection: Connection, reason: str) -> ConnectFailed:
        message = "brokers could not prove themselves to each other"
        self._client_log.warning(log, message, client=connection.address, reason=reason)
        return ConnectFailed(connection.address, reason)


class AcceptedHere(NamedTuple):
    """Where this broker lets others prove themselves."""

    addresses: frozenset[str]
    """That it registered for brokers, as `host:port`."""
    listener: str | None
    """The only one for brokers; None: there is no such restriction."""


class Authenticator:
    """Checks the proofs of brokers that connect to this one."""

    def __init__(
        self,
        secrets: BrokerSecrets,
        accepted: Callable[[], AcceptedHere],
        cluster_id: Callable[[], str],
        randomness: Randomness,
    ) -> None:
        self._secrets = secrets
        self._accepted = accepted
        self._cluster_id = cluster_id
        self._randomness = randomness
        self._checking: set[Peer] = set()

    async def answer(
        self, peer: Peer, request: AuthenticateBrokerRequest
    ) -> AuthenticateBrokerResponse:
        """A challenge, or the end of one; raises NotABroker, BrokerUnverifiable."""
        if peer in self._checking:
            # Each may read the coordination service: with many at a time one client's claims would
            # delay those of brokers.
            raise NotABroker("a claim before the answer to another")
        self._checking.add(peer)
        try:
            return await self._answer(peer, request)
        finally:
            self._checking.discard(peer)

    async def _answer(
        self, peer: Peer, request: AuthenticateBrokerRequest
    ) -> AuthenticateBrokerResponse:
        claim = Claim(
            BrokerId(request.broker_id),
            BrokerEpoch(request.broker_epoch),
            request.cluster_id,
            request.address,
            bytes(request.nonce),
        )
        self._check(peer, claim)
        secret = await self._secrets.secret_of(
            claim.broker_id, claim.epoch, client_host=peer.client_host
        )
        if not request.proof:
            challenge = Challenge(claim, self._randomness.secret(NONCE_BYTES))
            peer.challenge = challenge
            proof = proof_of(secret, Side.ANSWERING, challenge)
            return AuthenticateBrokerResponse(nonce=challenge.nonce, proof=proof)
        expected, peer.challenge = peer.challenge, None  # each is answered once
        if (
            expected is None
            or expected.claim != claim
            or not is_proven(bytes(request.proof), secret, Side.CONNECTING, expected)
        ):
            raise NotABroker("the proof is wrong")
        peer.prove(claim.broker_id)
        return AuthenticateBrokerResponse()

    def _check(self, peer: Peer, claim: Claim) -> None:
        """Raises NotABroker, BrokerUnverifiable."""
        accepted, cluster_id = self._accepted(), self._cluster_id()
        if not cluster_id:
            raise BrokerUnverifiable("this broker is not registered yet")
        if accepted.listener not in (None, peer.listener):
            raise NotABroker(f"listener {peer.listener} is not for brokers")
        if claim.cluster_id != cluster_id:
            raise NotABroker(f"it is a broker of cluster {claim.cluster_id}")
        if claim.address not in accepted.addresses:
            # Passed on by another process, to which it connected instead of this broker.
            raise NotABroker(f"it connected to {claim.address}")
        if len(claim.nonce) != NONCE_BYTES:
            raise NotABroker(f"a nonce of {len(claim.nonce)} bytes")
