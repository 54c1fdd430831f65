"""Requests to the members of one etcd cluster: one after the other, until one answers or it is unsafe to ask again.

A write is sent again only where it surely was not done. Before a member is used, and after each failure of it, its
version and its cluster are checked.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, TypeVar

import httpx2
import msgspec
import structlog

from backend_store.cluster.coordinator import UnsupportedServer
from backend_store.cluster.etcd.codec import (
    StatusAnswer,
    TokenAnswer,
    TokenRefused,
    VersionAnswer,
    decode,
    encode,
    error_of,
    version_problem,
)
from backend_store.cluster.limits import (
    ETCD_ANSWER_BYTES_MAX,
    ETCD_CONNECT_SECONDS_MAX,
    ETCD_CONNECTIONS_MAX,
    ETCD_ENDPOINTS_MAX,
    ETCD_READ_SECONDS_MAX,
    ETCD_RECONNECT_SECONDS_MAX,
    ETCD_RECONNECT_SECONDS_MIN,
    ETCD_REQUEST_SECONDS_MAX,
    ETCD_WRITE_SECONDS_MAX,
)
from backend_store.model import InvalidRequest, OutcomeUnknown, PushqError, Unauthenticated, Unavailable

log = structlog.get_logger("pushq.etcd")

T = TypeVar("T")
VERSION: Final = "/version"
STATUS: Final = "/v3/maintenance/status"
AUTHENTICATE: Final = "/v3/auth/authenticate"
# The gateway forwards this header. A member without a leader then refuses at once and ends watches, instead of keeping
# them waiting.
_NEEDS_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class AnswerTooBig(PushqError):
    """One answer exceeded `ETCD_ANSWER_BYTES_MAX`; the rest was not read."""

    code = "overloaded"


class Members:
    """The members of one etcd cluster. The caller closes it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
    ):
        """`endpoints`: `http://HOST:PORT` or `https://HOST:PORT`. `tls` has the authorities and our certificate."""
        self.endpoints = _checked(endpoints)
        self._user = user
        self._password = password
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._vetted: set[str] = set()
        self._cluster = 0
        self._turn = 0
        self._closed = False
        self._client = httpx2.AsyncClient(
            verify=_context(self.endpoints, tls),
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=ETCD_CONNECT_SECONDS_MAX, pool=ETCD_CONNECT_SECONDS_MAX),
            limits=httpx2.Limits(max_connections=ETCD_CONNECTIONS_MAX, max_keepalive_connections=ETCD_CONNECTIONS_MAX),
        )

    @property
    def current(self) -> str:
        """The member that is asked next."""
        return self.endpoints[self._turn % len(self.endpoints)]

    def leave(self, member: str) -> None:
        """Records a failure: the next member is asked, and this one is checked again before it is used again."""
        self._vetted.discard(member)
        if self.current == member:
            self._turn += 1

    async def ask(
        self, path: str, request: dict[str, Any], kind: type[T], *, writes: bool = False, once: bool = False
    ) -> T:
        """Returns the answer of a member. `writes`: the request must not be done twice. `once`: each member is asked
        only once, as the caller repeats the request itself.

        Raises `Unavailable` where nothing was done, `OutcomeUnknown` for a write that may have been done, and the error
        that the answer states.
        """
        content = encode(request)
        deadline = asyncio.get_running_loop().time() + ETCD_REQUEST_SECONDS_MAX
        pause = ETCD_RECONNECT_SECONDS_MIN
        while True:
            problem: PushqError | None = None
            for _ in self.endpoints:
                self._check_open()
                member = self.current
                try:
                    return await self._ask_member(member, path, content, kind, writes=writes)
                except (Unavailable, UnsupportedServer) as error:
                    problem = error
                except OutcomeUnknown as error:
                    problem = error
                    if writes:
                        self.leave(member)
                        raise
                self.leave(member)
            assert problem is not None
            if once or asyncio.get_running_loop().time() + pause > deadline:
                raise Unavailable(f"no usable etcd member; last error: {problem.detail}", retry_after_ms=1000)
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(ETCD_RECONNECT_SECONDS_MAX, pause * 2)

    async def _ask_member(self, member: str, path: str, content: bytes, kind: type[T], *, writes: bool) -> T:
        await self.vet(member)
        token = await self._known_token(member)
        try:
            return await self._post(member, path, content, kind, token, writes=writes)
        except TokenRefused as error:
            if not self._user:
                raise Unauthenticated(f"{error.detail}: etcd requires a user and a password") from None
            self._forget(token)
        try:
            return await self._post(member, path, content, kind, await self._known_token(member), writes=writes)
        except TokenRefused as error:
            raise Unavailable(error.detail) from None

    async def vet(self, member: str) -> None:
        """Checks a member. Raises `UnsupportedServer`, or `Unavailable` where it does not answer."""
        self._check_open()
        if member in self._vetted:
            return
        try:
            version = await self._answer("GET", member, VERSION, b"", VersionAnswer, {}, ETCD_READ_SECONDS_MAX)
            problem = version_problem(version.etcdserver)
            if problem is not None:
                raise UnsupportedServer(f"{member}: {problem}")
            status = await self._answer("POST", member, STATUS, b"{}", StatusAnswer, {}, ETCD_READ_SECONDS_MAX)
        except OutcomeUnknown as error:
            raise Unavailable(error.detail) from None
        self._cluster = self._cluster or status.header.cluster_id
        if status.header.cluster_id != self._cluster:
            raise UnsupportedServer(
                f"{member} belongs to cluster {status.header.cluster_id:x}, not to {self._cluster:x}"
            )
        self._vetted.add(member)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the coordinator is closed")

    # ---------------------------------------------------------------------------------------------------- tokens

    async def _known_token(self, member: str) -> str:
        if not self._user or self._token:
            return self._token
        async with self._authenticating:
            if not self._token:
                login = encode({"name": self._user, "password": self._password})
                try:
                    seconds = ETCD_WRITE_SECONDS_MAX
                    answer = await self._answer("POST", member, AUTHENTICATE, login, TokenAnswer, {}, seconds)
                except OutcomeUnknown as error:
                    raise Unavailable(error.detail) from None  # a token too many does no harm
                self._token = answer.token
        return self._token

    def _forget(self, token: str) -> None:
        if self._token == token:
            self._token = ""

    def forget_token(self) -> None:
        """The next request asks for a new token."""
        self._token = ""

    # -------------------------------------------------------------------------------------------------- requests

    async def _post(self, member: str, path: str, content: bytes, kind: type[T], token: str, *, writes: bool) -> T:
        seconds = ETCD_WRITE_SECONDS_MAX if writes else ETCD_READ_SECONDS_MAX
        return await self._answer("POST", member, path, content, kind, _headers(token), seconds)

    async def _answer(
        self,
        method: str,
        member: str,
        path: str,
        content: bytes,
        kind: type[T],
        headers: dict[str, str],
        seconds: float,
    ) -> T:
        try:
            # Connecting has its own limits within this one, so a request that times out here had been sent.
            async with asyncio.timeout(2 * ETCD_CONNECT_SECONDS_MAX + seconds):
                status, data = await self._exchange(method, member + path, content, headers, seconds)
        except _NOT_SENT as error:
            raise Unavailable(f"cannot reach {member}: {_said(error)}") from None
        except (httpx2.HTTPError, OSError) as error:
            # TLS alerts are raised as they are. A time-out is an OSError, too.
            raise OutcomeUnknown(f"{member} did not respond: {_said(error)}") from None
        if status != 200:
            raise error_of(member, status, data)
        try:
            return decode(data, kind)
        except msgspec.MsgspecError as error:
            raise OutcomeUnknown(f"{member} sent a malformed response: {error}") from None

    async def _exchange(
        self, method: str, url: str, content: bytes, headers: dict[str, str], seconds: float
    ) -> tuple[int, bytes]:
        timeout = httpx2.Timeout(seconds, connect=ETCD_CONNECT_SECONDS_MAX, pool=ETCD_CONNECT_SECONDS_MAX)
        async with self._client.stream(method, url, content=content, headers=headers, timeout=timeout) as response:
            data = bytearray()
            async for part in response.aiter_bytes():
                data += part
                if len(data) > ETCD_ANSWER_BYTES_MAX:
                    raise AnswerTooBig(f"the etcd response is larger than {ETCD_ANSWER_BYTES_MAX} bytes")
            return response.status_code, bytes(data)

    async def stream(self, member: str, path: str, request: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """Parts of an endless answer. Raises `Unavailable` when it ends, and the error that the answer states."""
        await self.vet(member)
        token = await self._known_token(member)
        try:
            async with self._client.stream(
                "POST", member + path, content=encode(request), headers=_headers(token)
            ) as response:
                if response.status_code != 200:
                    data = await anext(response.aiter_bytes(), b"")
                    raise error_of(member, response.status_code, data)
                async for part in response.aiter_bytes():
                    yield part
        except TokenRefused as error:
            self._forget(token)
            raise Unavailable(error.detail) from None
        except OutcomeUnknown as error:
            raise Unavailable(error.detail) from None
        except (httpx2.HTTPError, OSError) as error:
            raise Unavailable(f"{member}: the watch was interrupted: {_said(error)}") from None
        raise Unavailable(f"{member} ended the watch")

    async def answers(self, member: str) -> bool:
        """Whether the member is alive and has a leader, within `ETCD_READ_SECONDS_MAX`."""
        try:
            status = await self._answer("POST", member, STATUS, b"{}", StatusAnswer, {}, ETCD_READ_SECONDS_MAX)
        except PushqError:
            return False
        return status.leader != 0

    async def close(self) -> None:
        self._closed = True
        await self._client.aclose()


def _headers(token: str) -> dict[str, str]:
    return {**_NEEDS_LEADER, "Authorization": token} if token else _NEEDS_LEADER


def _context(endpoints: Sequence[str], tls: ssl.SSLContext | None) -> ssl.SSLContext:
    if tls is not None:
        return tls
    if any(endpoint.startswith("https:") for endpoint in endpoints):
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used; loading the system's authorities is slow


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _checked(endpoints: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(endpoints) <= ETCD_ENDPOINTS_MAX:
        raise InvalidRequest(f"endpoints must have 1 to {ETCD_ENDPOINTS_MAX} entries, not {len(endpoints)}")
    for endpoint in endpoints:
        url = httpx2.URL(endpoint)
        if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/") or url.userinfo:
            raise InvalidRequest(
                f"endpoints: {url.copy_with(userinfo=b'')!s} must be http://HOST:PORT or https://HOST:PORT"
            )
    return tuple(endpoint.rstrip("/") for endpoint in endpoints)
