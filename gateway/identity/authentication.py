"""Authentication: resolves a token to its principal, as the first step of each request below `/v1`.

An API key is `pushq_<id>_<secret>`. Only the SHA-256 of the token is stored: the secret has 256 random bits, so a slow
hash would protect nothing and cost every request. Principals are cached by the token's hash. JWTs of the configured
issuers are verified by `jwt` and cached the same way.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from backend_store.client import Store
from backend_store.model import TENANT_DEFAULT, ApiKey, Conflict, TokenExpired, Unauthenticated
from gateway.clock import wall_clock_ms
from gateway.identity.authorization import Access, compile_scopes
from gateway.identity.jwks_refresh import FreshKeys
from gateway.identity.jwt import Tokens, Verified
from gateway.limits import IDENTITIES_MAX, TEMPORARY_KEY_SECONDS, TOKEN_BYTES_MAX

TOKEN_PREFIX = "pushq_"
ADMIN_KEY_FILE = "admin.key"
FIRST_KEY = "0" * 16
"""The id of the key that the first start makes. It is fixed, so that processes that start at once make one key."""
NEVER_MS = 1 << 62
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
KEY_ID_SHOWN = 64

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True, eq=False)
class Principal:
    """An authenticated caller. Throttles and logs identify it by `id`: the key's, or tenant, issuer and subject."""

    id: str
    tenant: str
    name: str
    access: Access
    valid_until_ms: int
    secret_sha256: bytes
    """Hash of the token it authenticated with: when that secret is rotated away, the sessions it opened end."""
    issuer: str | None = None
    """The issuer of its JWT; None for an API key."""
    signed_by: bytes = b""
    """The fingerprint of the key that signed its JWT."""


def same_caller(one: Principal, other: Principal) -> bool:
    """Whether two credentials belong to one caller: the same subject of an issuer, the same key, or keys of one tenant
    with the same name, such as the successive short-lived keys of a web page.
    """
    if one.tenant != other.tenant or one.issuer != other.issuer:
        return False
    return one.id == other.id or (one.issuer is None and one.name == other.name)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made; `token` is shown once and not kept."""

    stored: ApiKey
    token: str


class Keyring:
    """The API keys of the store and the issuers of JWTs, with a cache of the principals of recent tokens."""

    def __init__(
        self,
        store: Store,
        clock_ms: Clock = wall_clock_ms,
        tokens: Tokens | None = None,
        expect: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`expect` is called before a key or tenant is reported as unknown; it raises `LookingUp` while that is not
        certain."""
        self._expect = expect
        self._metadata = store.metadata
        self._tokens = tokens
        self._clock_ms = clock_ms
        self._identities: dict[bytes, Principal] = {}
        self._temporary: dict[str, NewKey] = {}
        self._used: dict[str, int] = {}
        """Key id → time of its last use, for keys used since that was last stored."""

    # ------------------------------------------------------------------------------------------- authentication

    def identify(self, token: str) -> Principal:
        """The principal of a token. Raises `Unauthenticated`, for an unknown API key with the same words whichever part
        is wrong; `TokenExpired` for a JWT whose time is over; `Unavailable` while the issuer's keys are not there.
        """
        digest = sha256(token.encode("utf-8", "replace")).digest()
        principal = self._identities.get(digest)
        if principal is None:
            principal = self._look_up(token, digest)
        if principal.issuer is not None:
            self._check_still_good(principal, digest)
        else:
            now_ms = self._clock_ms()
            if now_ms >= principal.valid_until_ms:
                raise Unauthenticated("the API key has expired or was rotated")
            if not self.still_valid(principal):  # revoked at another gateway
                self._identities.pop(digest, None)
                raise Unauthenticated("unknown API key: it was mistyped, revoked, or belongs to another server")
            self._used[principal.id] = now_ms
        return principal

    def _check_still_good(self, principal: Principal, digest: bytes) -> None:
        if not self._is_trusted(principal):
            self._identities.pop(digest, None)
            raise Unauthenticated("the issuer no longer uses the key that signed the token, or its tenant was deleted")
        if self._clock_ms() >= principal.valid_until_ms:
            self._identities.pop(digest, None)
            raise TokenExpired("the token has expired")

    def _is_trusted(self, principal: Principal) -> bool:
        """Whether its issuer still has the key that signed its token, and its tenant exists."""
        if self._tokens is None or principal.issuer is None or principal.tenant not in self._metadata.tenants:
            return False
        return self._tokens.trusts(principal.issuer, principal.signed_by)

    def still_valid(self, principal: Principal) -> bool:
        """Whether a session that `principal` opened may continue: its key exists with that secret and has not expired;
        or its JWT has not expired and is still trusted."""
        if principal.issuer is not None:
            return self._clock_ms() < principal.valid_until_ms and self._is_trusted(principal)
        key = self.find(principal.id)
        return key is not None and self._clock_ms() < _valid_until_ms(key, principal.secret_sha256)

    def withdrawn(self, principal: Principal) -> str | None:
        """Why a credential was withdrawn; None if it was not, or only expired. Raises `LookingUp` while that must be
        asked for elsewhere.
        """
        if principal.issuer is not None:
            return None if self._is_trusted(principal) else "the issuer no longer uses the key that signed the token"
        key = self.find(principal.id)
        if key is None:
            return "the API key was revoked" if self._clock_ms() < principal.valid_until_ms else None
        endless = msgspec.structs.replace(key, expires_at_ms=None)
        if self._clock_ms() < _valid_until_ms(endless, principal.secret_sha256):
            return None
        return "the API key was rotated"

    def has_expired(self, principal: Principal) -> bool:
        """Whether it authenticated with a JWT that has expired; its caller has, or can get, a newer one."""
        return principal.issuer is not None and self._clock_ms() >= principal.valid_until_ms

    def _look_up(self, token: str, digest: bytes) -> Principal:
        if self._tokens is not None and Tokens.looks_like(token):
            return self._remember(self._vouched(token, digest), digest)
        key = self.find(_key_id(token))
        until_ms = _valid_until_ms(key, digest) if key is not None else 0
        if key is None or until_ms == 0:
            self._expect(f"API key {_key_id(token)[:KEY_ID_SHOWN]!r}")
            raise Unauthenticated("unknown API key: it was mistyped, revoked, or belongs to another server")
        return self._remember(
            Principal(key.id, key.tenant, key.name, compile_scopes(key.scopes), until_ms, digest), digest
        )

    def _vouched(self, token: str, digest: bytes) -> Principal:
        """The principal of a JWT."""
        assert self._tokens is not None
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
        verified = self._tokens.verify(token, self._clock_ms())
        grant = verified.grant
        if grant.tenant not in self._metadata.tenants:
            self._expect(f"tenant {grant.tenant!r}")
            raise Unauthenticated(f"the token is for tenant {grant.tenant!r}, which does not exist here")
        return Principal(
            principal_id(verified),
            grant.tenant,
            grant.subject,
            _access(verified),
            grant.until_ms,
            digest,
            verified.issuer.issuer,
            verified.fingerprint,
        )

    def _remember(self, principal: Principal, digest: bytes) -> Principal:
        if len(self._identities) >= IDENTITIES_MAX:
            del self._identities[next(iter(self._identities))]
        self._identities[digest] = principal
        return principal

    @property
    def fresh_keys(self) -> Iterable[FreshKeys]:
        """The key sets of issuers."""
        return () if self._tokens is None else self._tokens.key_sets.fresh

    # ----------------------------------------------------------------------------------------------- their keys

    def find(self, key_id: str) -> ApiKey | None:
        key = self._metadata.keys.get(key_id)
        if key is None and key_id in self._temporary:
            key = self._temporary[key_id].stored
        return key

    def stored(self) -> list[ApiKey]:
        return list(self._metadata.keys.values())

    def now_ms(self) -> int:
        return self._clock_ms()

    def note_use(self, key_id: str) -> None:
        """Marks a stored key as used now: a connection that it opened is still up."""
        if key_id in self._metadata.keys:
            self._used[key_id] = self._clock_ms()

    def last_used_ms(self, key_id: str) -> int | None:
        """The key's last use, rounded down to the minute; None if it was never used, or last used under a version that
        did not store it."""
        used_ms = self._used.get(key_id, self._metadata.keys_used.get(key_id))
        return None if used_ms is None else used_ms - used_ms % MINUTE_MS

    def take_used(self, keys_max: int) -> dict[str, int]:
        """Removes and returns up to `keys_max` keys whose minute of use is newer than the stored one."""
        taken: dict[str, int] = {}
        for key_id in list(self._used):
            if len(taken) == keys_max:
                break
            minute_ms = self.last_used_ms(key_id)
            del self._used[key_id]
            is_stored = key_id in self._metadata.keys  # a temporary key is not
            if minute_ms is not None and is_stored and minute_ms != self._metadata.keys_used.get(key_id):
                taken[key_id] = minute_ms
        return taken

    def keep_used(self, taken: Mapping[str, int]) -> None:
        """Puts back what `take_used` returned, because it could not be stored. A newer use is kept."""
        for key_id, minute_ms in taken.items():
            self._used.setdefault(key_id, minute_ms)

    def keys_until_ms(self, principal: Principal) -> int | None:
        """Until when a key may last whose secret this caller receives; None: no end.

        A credential that ends must not create one that does not: neither directly nor by way of another key. A JWT ends
        too soon to be the measure; the setting `auth.jwt.key_days_max` applies instead.
        """
        if principal.issuer is not None:
            assert self._tokens is not None
            return self._clock_ms() + self._tokens.key_days_max * DAY_MS
        key = self._metadata.keys.get(
            principal.id
        )  # the console of `--dev` has a temporary key: it acts for the operator
        return None if key is None else key.expires_at_ms

    async def create(
        self, *, name: str, tenant: str, scopes: tuple[str, ...], expires_at_ms: int | None = None
    ) -> NewKey:
        made = self._make(name=name, tenant=tenant, scopes=scopes, expires_at_ms=expires_at_ms)
        await self._metadata.put_key(made.stored)
        return made

    async def rotate(self, key: ApiKey, *, grace_ms: int) -> NewKey:
        """Gives the key a new secret; the old one works for `grace_ms` more.

        Raises `NotFound` if the key was deleted meanwhile, `Conflict` if another caller changed it.
        """
        token, digest = _make_token(key.id)
        changed = msgspec.structs.replace(
            key,
            secret_sha256=digest,
            previous_sha256=key.secret_sha256 if grace_ms else None,
            previous_until_ms=self._clock_ms() + grace_ms if grace_ms else None,
        )
        await self._metadata.put_key(changed, instead_of=key)
        self._forget(key.id)
        return NewKey(changed, token)

    async def revoke(self, key_id: str) -> None:
        """Deletes the key, which authenticates no longer. Raises `NotFound`, and `Conflict` for the last operator's."""
        await self._metadata.delete_key(key_id)
        self._forget(key_id)

    def temporary(self, *, name: str, scopes: tuple[str, ...]) -> str:
        """The token of a key that is never stored and expires by itself.

        Returns the same key while more than half of its time is left: a caller that comes back with it is the same
        principal and may resume.
        """
        now_ms, life_ms = self._clock_ms(), TEMPORARY_KEY_SECONDS * 1000
        for key_id, made in list(self._temporary.items()):
            left_ms = (made.stored.expires_at_ms or 0) - now_ms
            if left_ms <= 0:
                del self._temporary[key_id]
            elif left_ms > life_ms // 2 and (made.stored.name, made.stored.scopes) == (name, scopes):
                return made.token
        made = self._make(name=name, tenant=TENANT_DEFAULT, scopes=scopes, expires_at_ms=now_ms + life_ms)
        self._temporary[made.stored.id] = made
        return made.token

    def forget_tenant(self, tenant: str) -> None:
        """Drops the cached principals of a tenant that was deleted with its keys."""
        self._identities = {d: p for d, p in self._identities.items() if p.tenant != tenant}

    def _make(
        self, *, name: str, tenant: str, scopes: tuple[str, ...], expires_at_ms: int | None, key_id: str | None = None
    ) -> NewKey:
        key_id = key_id or secrets.token_hex(8)
        token, digest = _make_token(key_id)
        now_ms = self._clock_ms()
        key = ApiKey(key_id, name, tenant, scopes, digest, created_at_ms=now_ms, expires_at_ms=expires_at_ms)
        return NewKey(key, token)

    def _forget(self, key_id: str) -> None:
        self._identities = {d: p for d, p in self._identities.items() if p.id != key_id}


def principal_id(verified: Verified) -> str:
    """Tokens of one subject are one caller. Names of tenants and issuers, and key ids, contain no `|`."""
    return f"{verified.grant.tenant}|{verified.issuer.issuer}|{verified.grant.subject}"


def _access(verified: Verified) -> Access:
    limit, scopes = verified.issuer.scopes_max, verified.grant.scopes
    return compile_scopes(scopes) if limit is None else compile_scopes(limit).narrowed(scopes)


def _key_id(token: str) -> str:
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and token.startswith(TOKEN_PREFIX) else ""


def _make_token(key_id: str) -> tuple[str, bytes]:
    token = f"{TOKEN_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    return token, sha256(token.encode()).digest()


def _valid_until_ms(key: ApiKey, digest: bytes) -> int:
    """Until when the token with this hash is valid for the key; 0 if it is not the key's."""
    end_ms = NEVER_MS if key.expires_at_ms is None else key.expires_at_ms
    if hmac.compare_digest(key.secret_sha256, digest):
        return end_ms
    if key.previous_sha256 is not None and hmac.compare_digest(key.previous_sha256, digest):
        return min(end_ms, key.previous_until_ms or 0)
    return 0


# -------------------------------------------------------------------------------------------------- first start


async def make_first_key(keyring: Keyring, directory: Path) -> Path:
    """On a store without keys, makes a key that may do everything and writes it to `DIR/admin.key`. If several
    processes start at once, one of them makes it; the others have no file."""
    path = directory / ADMIN_KEY_FILE
    if keyring.stored():
        return path
    made = keyring._make(
        name="admin", tenant=TENANT_DEFAULT, scopes=("admin", "operator"), expires_at_ms=None, key_id=FIRST_KEY
    )
    # The file first: a crash in between leaves a token that is not valid, and the next start makes another key.
    _write_private(path, made.token + "\n")
    try:
        await keyring._metadata.put_key(made.stored)
    except Conflict:
        path.unlink(missing_ok=True)
    return path


def _write_private(path: Path, text: str) -> None:
    """Writes the file in one step, readable by its owner alone from the first byte on."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
