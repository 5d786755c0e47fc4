"""Opens sessions through kazoo: the chroot node, the nodes' access lists, and then the session."""

import asyncio
from contextlib import suppress

from kazoo.security import ACL

from millstream.coordination import errors
from millstream.coordination.kazoo_client import Access
from millstream.coordination.kazoo_protection import Tree, protect
from millstream.coordination.kazoo_session import KazooSession
from millstream.runtime.clock import Clock


class KazooCoordination:
    """Opens sessions; `servers` is ZooKeeper's connection string, `h1:2181,h2:2181/chroot`."""

    def __init__(
        self,
        servers: str,
        clock: Clock,
        access: Access | None = None,
        tree: Tree | None = None,
    ) -> None:
        """With `tree`, the first connection protects its nodes."""
        self._servers = servers
        self._clock = clock
        self._access = access
        self._unprotected = tree
        self._has_root = "/" not in servers

    async def connect(self, *, timeout_ms: int, wait_s: float) -> KazooSession:
        try:
            return await self._open(timeout_ms, wait_s)
        except errors.AuthenticationFailed:
            raise
        except (errors.ConnectionLost, errors.SessionLost) as error:
            # Until the secret is proved a session ends with its connection, and who opens many of
            # them can have it closed: a reason to try again, nothing more.
            raise errors.CannotConnect(f"{self._servers}: {error}") from error

    async def _open(self, timeout_ms: int, wait_s: float) -> KazooSession:
        if not self._has_root:
            await self._make_root(timeout_ms, wait_s)
        session = await self._connect(self._servers, timeout_ms, wait_s)
        acl = None if self._access is None else self._access.acl()
        if self._unprotected is not None and acl is not None:
            await self._protect(session, self._unprotected, acl)
            self._unprotected = None
        return session

    async def _protect(self, session: KazooSession, tree: Tree, acl: list[ACL]) -> None:
        try:
            await protect(session, tree, acl, has_chroot="/" in self._servers)
        except BaseException:
            session.close_soon()
            raise

    async def _make_root(self, timeout_ms: int, wait_s: float) -> None:
        """Create the chroot node, as Kafka does."""
        servers, _, root = self._servers.partition("/")
        session = await self._connect(servers, timeout_ms, wait_s)
        try:
            path = ""
            for name in root.strip("/").split("/"):
                path = f"{path}/{name}"
                # Not without looking: who may not create it may still use one that exists.
                if await session.exists(path) is None:
                    with suppress(errors.NodeExists):
                        await session.create(path)
        finally:
            await session.close()
        self._has_root = True

    async def _connect(self, servers: str, timeout_ms: int, wait_s: float) -> KazooSession:
        session = KazooSession(servers, self._clock, timeout_ms=timeout_ms, access=self._access)
        try:
            async with asyncio.timeout(wait_s):
                await session.connected()
        except BaseException as error:
            session.close_soon()
            if not isinstance(error, TimeoutError):
                raise
            reason = f"no session with {servers} within {wait_s} s"
            raise errors.CannotConnect(reason) from None
        return session
