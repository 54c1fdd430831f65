"""Contexts: named servers and how to get their key, stored in one file that only its owner may read."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec

from gateway.commands.exits import Exit, Failure

VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
KEY_COMMAND_S_MAX: Final = 60.0
"""Long enough to type a passphrase."""
_ID_OF_KEY: Final = re.compile(r"(pushq_[A-Za-z0-9]+)_.+")


class Profile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """One server, and the caller's credentials there. At most one of the three ways to a key is set."""

    url: str
    key: str | None = None
    key_file: str | None = None
    key_command: str | None = None
    """Its first line of stdout is the key. It is split into words as a shell does, and run without a shell."""
    tenant: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None

    def shown_key(self) -> str:
        """Where the key comes from, without its secret."""
        if self.key is not None:
            known = _ID_OF_KEY.fullmatch(self.key)
            return "stored in the context" + (f" ({known[1]}_…)" if known else "")
        if self.key_file is not None:
            return f"file {self.key_file}"
        return f"command {_words(self.key_command)[0]} …" if self.key_command is not None else "–"

    def shown(self) -> dict[str, str | None]:
        """The fields that may be printed."""
        fields = {"url": self.url, "key": self.shown_key(), "tenant": self.tenant}
        return fields | {"ca_file": self.ca_file, "cert_file": self.cert_file}


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    contexts: dict[str, Profile] = {}
    current: str | None = None
    version: int = VERSION

    def get(self, name: str, origin: str) -> Profile:
        """The context of that name; the error message names its `origin`. Raises `Failure`."""
        if (found := self.contexts.get(name)) is None:
            there = f"saved: {', '.join(sorted(self.contexts))}" if self.contexts else "there is none yet"
            raise Failure(
                f'{origin}: no context "{name}"; {there}',
                exit=Exit.NOT_FOUND,
                lines=[f"create it with `pushq context add {name} --url URL`"],
            )
        return found


def path() -> Path | None:
    """`$XDG_CONFIG_HOME/pushq/contexts.json`; a relative folder there is ignored, as the XDG specification says.

    None for a user without a home, as in a container.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (home if home.is_absolute() else Path.home() / ".config") / "pushq" / "contexts.json"
    except RuntimeError:
        return None


def load() -> Contexts:
    """Reads the file; empty if there is none. Raises `Failure` if others may read or change it."""
    if (file := path()) is None:
        return Contexts()
    try:
        with file.open("rb") as opened:
            _check_owned(file, os.fstat(opened.fileno()))
            raw = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise Failure(f"cannot read contexts from {file}: {error.strerror}") from error
    try:
        found = msgspec.json.decode(raw, type=Contexts)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        # The file has keys: its text is not shown.
        raise Failure(f"{file} is not a contexts file: {error}", lines=["fix or delete it"]) from None
    if found.version != VERSION:
        raise Failure(f"{file} has version {found.version}, but this pushq reads version {VERSION}")
    return found


def save(contexts: Contexts) -> None:
    """Replaces the file atomically, with mode 0600."""
    if (file := path()) is None:
        raise Failure("no home folder to store contexts in: set XDG_CONFIG_HOME")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(msgspec.json.format(msgspec.json.encode(contexts, order="sorted")) + b"\n")
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Failure(f"cannot write contexts to {file}: {error.strerror}") from error


def key_of(name: str, profile: Profile) -> tuple[str, str] | None:
    """The key of a context and its origin; None if the context names none. Raises `Failure`."""
    origin = f'context "{name}"'
    if profile.key is not None:
        return profile.key, origin
    if profile.key_command is None:
        return None
    command = _words(profile.key_command)
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=KEY_COMMAND_S_MAX)
    except OSError as error:
        raise Failure(f"{origin}: cannot run its key command {command[0]}: {error.strerror}", exit=Exit.AUTH) from None
    except subprocess.TimeoutExpired:
        raise Failure(
            f"{origin}: its key command {command[0]} returned no key within {KEY_COMMAND_S_MAX:g} s", exit=Exit.AUTH
        ) from None
    if ran.returncode != 0:
        raise Failure(f"{origin}: its key command {command[0]} failed with exit code {ran.returncode}", exit=Exit.AUTH)
    return ran.stdout.decode(errors="replace").split("\n", 1)[0].strip(), f"the key command of {origin}"


def checked_name(name: str) -> str:
    """Raises `BadParameter`."""
    if NAME.fullmatch(name) is None:
        raise click.BadParameter(
            f"invalid context name {name!r}: use 1 to 64 letters, digits, `_`, `.` and `-`, starting with a "
            "letter or digit",
            param_hint="NAME",
        )
    return name


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Failure(f"cannot parse the context's key command: {error}", exit=Exit.AUTH) from None
    if not words:
        raise Failure("the context's key command is empty", exit=Exit.AUTH)
    return words


def _check_owned(file: Path, found: os.stat_result) -> None:
    """Raises `Failure` unless the file is private: its readers have the key, its writers choose the command we run."""
    if found.st_uid != os.geteuid():
        raise Failure(f"{file} belongs to another user; its contexts are ignored", exit=Exit.AUTH)
    if (mode := stat.S_IMODE(found.st_mode)) & 0o077:
        raise Failure(
            f"{file} has mode {mode:04o}, so others may read or change it; its contexts are ignored",
            exit=Exit.AUTH,
            lines=[f"chmod 600 {shlex.quote(str(file))}"],
        )
