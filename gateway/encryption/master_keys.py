"""Master keys wrap and unwrap data keys. The operator chooses where they come from (`encryption.master`).

`file` and `environment` hold keys as text, one per line; the first wraps, the others only unwrap what they wrapped.
`command` runs a program, which may ask a key server; the key itself never enters this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backend_store.client import DataKey
from backend_store.words import counted
from gateway.admission.dependency_guard import Guard
from gateway.config.settings import Encryption
from gateway.encryption.cipher import DATA_KEY_BYTES, NONCE_BYTES
from gateway.limits import MASTER_ANSWER_BYTES_MAX, MASTER_KEYS_MAX

log = structlog.get_logger("pushq.encryption")

MASTER_FILE: Final = "master.key"
MASTER_VARIABLE: Final = "PUSHQ_MASTER_KEY"
MASTER_FILE_VARIABLE: Final = "PUSHQ_MASTER_KEY_FILE"
_CONTEXT = struct.Struct(">HQIH")  # bytes of tenant, uid, key id, bytes of master
_FORMAT: Final = b"pushq data key 1\0"


class MasterError(Exception):
    """The master key is missing or not the right one. The message says how to mend it."""


class Context(NamedTuple):
    """Identifies a data key; bound to its wrapped form, so that this opens for no other key."""

    tenant: str
    uid: int
    key_id: int


class Wrapped(NamedTuple):
    master: str
    data: bytes


class Masters(Protocol):
    @property
    def active(self) -> str:
        """The id of the master key that wraps."""

    @property
    def count(self) -> int:
        """Number of master keys, including those that only unwrap; 1 if it is unknown here."""

    async def wrap(self, keys: Sequence[tuple[Context, bytes]]) -> list[Wrapped]:
        """Wraps data keys with the active master key, in order. Raises `Unavailable` while it does not answer."""

    async def unwrap(self, keys: Sequence[DataKey]) -> list[bytes]:
        """Unwraps data keys, in order. Raises `MasterError` if one does not open, `Unavailable` while the master key
        does not answer."""


def new_master_text() -> str:
    """A new random master key as a line of text (base64)."""
    return b64encode(os.urandom(DATA_KEY_BYTES)).decode()


def parse_masters(text: str, origin: str) -> list[bytes]:
    """Parses keys: one per line, 32 bytes as base64 or hexadecimal. Raises `MasterError`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise MasterError(
            f"{origin} has no master key; create one of 32 bytes as base64: head -c 32 /dev/urandom | base64"
        )
    if len(lines) > MASTER_KEYS_MAX:
        raise MasterError(f"{origin} has {len(lines)} master keys; the maximum is {MASTER_KEYS_MAX}")
    return [_parse(line, origin) for line in lines]


def _parse(line: str, origin: str) -> bytes:
    try:
        key = bytes.fromhex(line) if len(line) == 2 * DATA_KEY_BYTES else b64decode(line, validate=True)
    except ValueError:
        key = b""
    if len(key) != DATA_KEY_BYTES:
        raise MasterError(f"{origin} has a line that is not a key of 32 bytes as base64 or hexadecimal")
    return key


def master_id(key: bytes) -> str:
    """The id of a master key: a part of its hash, which reveals nothing about the key."""
    return hashlib.sha256(b"pushq master key\0" + key).hexdigest()[:16]


class LocalMasters:
    """Master keys held in this process."""

    def __init__(self, keys: Sequence[bytes], origin: str):
        self._keys = {master_id(key): AESGCM(key) for key in keys}
        self._origin = origin
        self.active = master_id(keys[0])

    @property
    def count(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> set[str]:
        return set(self._keys)

    async def wrap(self, keys: Sequence[tuple[Context, bytes]]) -> list[Wrapped]:
        out = []
        for context, secret in keys:
            nonce = os.urandom(NONCE_BYTES)
            data = nonce + self._keys[self.active].encrypt(nonce, secret, _bound(context, self.active))
            out.append(Wrapped(self.active, data))
        return out

    async def unwrap(self, keys: Sequence[DataKey]) -> list[bytes]:
        return [self._unwrap(key) for key in keys]

    def _unwrap(self, key: DataKey) -> bytes:
        master = self._keys.get(key.master)
        if master is None:
            held = ", ".join(self._keys)
            raise MasterError(
                f"data keys are encrypted with the master key {key.master}, but {self._origin} has {held}; restore "
                "the right one, or add it on another line"
            )
        try:
            nonce, data = key.wrapped[:NONCE_BYTES], key.wrapped[NONCE_BYTES:]
            return master.decrypt(nonce, data, _bound(Context(key.tenant, key.uid, key.id), key.master))
        except InvalidTag:
            raise MasterError(
                f"data key {key.id} cannot be decrypted with the master key {key.master}: its record was altered; "
                "restore the folder from a backup"
            ) from None


class FileMasters(LocalMasters):
    """The keys of `DIR/master.key`, or of another file."""

    def __init__(self, file: Path):
        self.file = file
        self._seen = _version(file)
        super().__init__(_read_masters(file), str(file))

    def changed(self) -> list[bytes] | None:
        """The keys of the file if it changed since the last check, else None. Raises `MasterError`."""
        version = _version(self.file)
        if version == self._seen:
            return None
        keys = _read_masters(self.file)
        self._seen = version  # only once it was read: a file that becomes readable may keep its version
        return keys

    def take(self, keys: Sequence[bytes]) -> None:
        """Uses these keys from now on; the first wraps."""
        super().__init__(keys, str(self.file))

    def put_first(self, key: bytes) -> None:
        """Makes a new key the active one and writes it to the file. The others stay, to unwrap what they wrapped."""
        if master_id(key) != self.active:
            known = [one for one in _read_masters(self.file) if one != key]
            self._write([key, *known])

    def keep_active(self) -> None:
        """Removes all keys but the active one from the file."""
        self._write(_read_masters(self.file)[:1])

    def _write(self, keys: Sequence[bytes]) -> None:
        write_private(self.file, "".join(b64encode(key).decode() + "\n" for key in keys))
        self._seen = _version(self.file)
        self.take(keys)


def _version(file: Path) -> tuple[int, ...]:
    """A value that changes when the file is written or replaced; empty if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read_masters(file: Path) -> list[bytes]:
    try:
        return parse_masters(file.read_text(), str(file))
    except FileNotFoundError:
        raise MasterError(
            f"{file} is missing, but data keys are encrypted with it; restore it from your safe copy"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise MasterError(f"cannot read {file}: {error}") from None


def write_private(file: Path, text: str) -> None:
    """Replaces a file in one step and syncs it; only its owner may read it."""
    work = file.with_name(file.name + ".new")
    work.unlink(missing_ok=True)
    with open(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    work.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class CommandMasters:
    """Wraps and unwraps by a program: one run per request, JSON on its stdin and stdout."""

    count = 1

    def __init__(self, settings: Encryption, guard: Guard):
        self.active = settings.command_key
        self._argv = settings.command
        self._seconds_max = settings.command_timeout_ms / 1000
        self._guard = guard

    async def wrap(self, keys: Sequence[tuple[Context, bytes]]) -> list[Wrapped]:
        rows = [{**_described(context), "plaintext": _text(secret)} for context, secret in keys]
        answers = await self._ask({"op": "wrap", "master": self.active, "keys": rows}, len(keys))
        return [Wrapped(self.active, answer) for answer in answers]

    async def unwrap(self, keys: Sequence[DataKey]) -> list[bytes]:
        out: dict[int, bytes] = {}
        for master in sorted({key.master for key in keys}):
            own = [key for key in keys if key.master == master]
            rows = [{**_described(Context(key.tenant, key.uid, key.id)), "wrapped": _text(key.wrapped)} for key in own]
            answers = await self._ask({"op": "unwrap", "master": master, "keys": rows}, len(own))
            if any(len(answer) != DATA_KEY_BYTES for answer in answers):
                raise MasterError(f"{self._argv[0]} returned something other than data keys for {master!r}")
            out.update(zip((key.id for key in own), answers, strict=True))
        return [out[key.id] for key in keys]

    async def _ask(self, request: dict[str, Any], count: int) -> list[bytes]:
        answer = await self._guard.call(lambda: self._run(msgspec.json.encode(request)), deadline_s=self._seconds_max)
        try:
            found = [b64decode(text, validate=True) for text in msgspec.json.decode(answer, type=_Answer).keys]
        except (msgspec.MsgspecError, ValueError) as error:
            raise MasterError(f"{self._argv[0]} returned an invalid response: {error}") from None
        if len(found) != count:
            raise MasterError(f"{self._argv[0]} was asked about {counted(count, 'key')} but returned {len(found)}")
        return found

    async def _run(self, request: bytes) -> bytes:
        """Runs the program once and returns its stdout. Raises `OSError` if it fails: the guard's kind of failure."""
        environment = {name: value for name, value in os.environ.items() if name != MASTER_VARIABLE}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, limit=MASTER_ANSWER_BYTES_MAX
        )
        try:
            out, err = await process.communicate(request)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = err[-200:].decode(errors="replace").strip().replace("\n", " ")
            raise OSError(f"{self._argv[0]} failed with exit code {process.returncode}: {said}")
        if len(out) > MASTER_ANSWER_BYTES_MAX:
            raise OSError(f"{self._argv[0]} returned {len(out)} bytes")
        return out


class _Answer(msgspec.Struct):
    keys: list[str]


def _described(context: Context) -> dict[str, Any]:
    return {"tenant": context.tenant, "queue": context.uid, "key": context.key_id}


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bound(context: Context, master: str) -> bytes:
    owner, by = context.tenant.encode(), master.encode()
    return _FORMAT + _CONTEXT.pack(len(owner), context.uid, context.key_id, len(by)) + owner + by


def open_masters(
    settings: Encryption, directory: Path, environ: Mapping[str, str], guard: Guard, *, is_new: bool
) -> Masters:
    """Opens the master keys that the settings name. Raises `MasterError`.

    `is_new`: no data key is wrapped yet, so a missing file may be created.
    """
    if settings.master == "command":
        return CommandMasters(settings, guard)
    if settings.master == "environment":
        if text := environ.get(MASTER_VARIABLE):
            return LocalMasters(parse_masters(text, MASTER_VARIABLE), MASTER_VARIABLE)
        if name := environ.get(MASTER_FILE_VARIABLE):
            return FileMasters(Path(name))
        raise MasterError(f"encryption.master is environment: set {MASTER_VARIABLE} or {MASTER_FILE_VARIABLE}")
    file = directory / MASTER_FILE
    if is_new and not file.exists():
        write_private(file, new_master_text() + "\n")
    elif file.exists() and file.stat().st_mode & 0o077:
        log.warning("others may read the master key", file=str(file), fix=f"chmod 600 {file}")
    return FileMasters(file)
