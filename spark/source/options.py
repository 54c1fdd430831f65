"""The options of `format("pushq")`, parsed and checked once. Each error names the option and how to fix it.

A key comes from the option `token` (Spark redacts options of that name), from a file, or from the driver's environment.
It appears in no plan and no checkpoint; `repr` leaves it out.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from spark.source.errors import WrongOption
from spark.source.limits import (
    PUBLISH_MESSAGES_MAX,
    QUEUE_BATCH_MESSAGES_DEFAULT,
    RETRY_SECONDS_MAX,
    SPLIT_OFFSETS_DEFAULT,
    TOKEN_BYTES_MAX,
)
from spark.source.offsets import Bound, parsed_bound

URL: Final = "PUSHQ_URL"
KEY: Final = "PUSHQ_KEY"
ARCHIVE_KEY: Final = "PUSHQ_ARCHIVE_KEY"

NAMES: Final = (
    "url",
    "queue",
    "token",
    "tokenFile",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerBatch",
    "offsetsPerTask",
    "failOnDataLoss",
    "maxMessagesPerBatch",
    "visibilityTimeoutMs",
    "waitMs",
    "exactlyOnce",
    "idColumn",
    "run",
    "messagesPerRequest",
    "retrySeconds",
    "sealKey",
    "sealKeyFile",
    "seal",
)
_BESIDE: Final = frozenset({"path", "checkpointlocation", "paths", "outputmode"})
"""Options that Spark adds itself."""


@dataclass(frozen=True, slots=True)
class Options:
    """Times are in ms, unless the name says seconds."""

    url: str
    queue: str
    token: str = field(repr=False)
    starting: Bound
    ending: Bound
    max_offsets: int | None
    """Offsets per batch of a stream, over all partitions."""
    split: int
    fail_on_data_loss: bool
    max_messages: int
    visibility_ms: int
    wait_ms: int
    exactly_once: bool
    id_column: str | None
    run: str | None
    per_request: int
    retry_s: int
    seal_key: bytes | None = field(repr=False)
    seal: bool


def parsed(given: Mapping[str, str], env: Mapping[str, str] = os.environ) -> Options:
    """Parses and checks all options. Raises `WrongOption`."""
    options = _Given(given)
    options.check_names()
    seal_key = _seal_key(options, env)
    seal = options.flag("seal", False)
    if seal and seal_key is None:
        raise WrongOption("seal", f"needs a key of 32 bytes as hex: set sealKeyFile, sealKey or {ARCHIVE_KEY}")
    return Options(
        url=_url(options, env),
        queue=options.needed("queue", "the name of a queue or stream, such as orders"),
        token=_token(options, env),
        starting=parsed_bound("startingOffsets", options.get("startingOffsets", "earliest")),
        ending=parsed_bound("endingOffsets", options.get("endingOffsets", "latest")),
        max_offsets=options.number("maxOffsetsPerBatch", None, low=1),
        split=options.number("offsetsPerTask", SPLIT_OFFSETS_DEFAULT, low=1) or SPLIT_OFFSETS_DEFAULT,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        max_messages=options.number("maxMessagesPerBatch", None, low=1) or QUEUE_BATCH_MESSAGES_DEFAULT,
        visibility_ms=options.number("visibilityTimeoutMs", 300_000, low=1_000) or 0,
        wait_ms=options.number("waitMs", 1_000, low=0) or 0,
        exactly_once=options.flag("exactlyOnce", True),
        id_column=options.get("idColumn"),
        run=options.get("run"),
        per_request=options.number("messagesPerRequest", PUBLISH_MESSAGES_MAX, low=1, high=PUBLISH_MESSAGES_MAX) or 1,
        retry_s=options.number("retrySeconds", RETRY_SECONDS_MAX, low=0) or 0,
        seal_key=seal_key,
        seal=seal,
    )


class _Given:
    """Options by name, ignoring case: Spark does not preserve it."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def check_names(self) -> None:
        known = {name.lower() for name in NAMES} | _BESIDE
        for name in self._given:
            if name not in known:
                raise WrongOption(name, f"no such option{_meant(name)}; the options are: {', '.join(NAMES)}")

    def get(self, name: str, default: str | None = None) -> str | None:
        value = self._given.get(name.lower(), default)
        return value.strip() if value is not None else None

    def needed(self, name: str, what: str) -> str:
        value = self.get(name)
        if not value:
            raise WrongOption(name, f'is missing: .option("{name}", …), {what}')
        return value

    def flag(self, name: str, default: bool) -> bool:
        text = (self.get(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise WrongOption(name, f"is {text[:50]!r}, not true or false")
        return text == "true"

    def number(self, name: str, default: int | None, *, low: int, high: int | None = None) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or int(text) < low or (high is not None and int(text) > high):
            bound = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise WrongOption(name, f"is {text[:50]!r}, not a whole number {bound}")
        return int(text)


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, [one.lower() for one in NAMES], 1)
    return "".join(f", did you mean {one}?" for one in NAMES if close and one.lower() == close[0])


def _url(options: _Given, env: Mapping[str, str]) -> str:
    url = options.get("url") or env.get(URL, "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongOption("url", f"is {url[:200]!r}, not a gateway's address such as http://gateway:8080 (or {URL})")
    if parts.username or parts.password:
        raise WrongOption("url", "contains credentials, which plans and logs would show; use tokenFile or " + KEY)
    return url.rstrip("/")


def _token(options: _Given, env: Mapping[str, str]) -> str:
    token = options.get("token") or _from_file(options, "tokenFile") or env.get(KEY, "").strip()
    if not token:
        raise WrongOption("token", f"no key given: set tokenFile, token, or {KEY} in the driver's environment")
    if not token.isascii() or not token.isprintable() or " " in token or len(token) > TOKEN_BYTES_MAX:
        raise WrongOption("token", "is not an API key: `pushq key create` prints one")
    return token


def _from_file(options: _Given, name: str) -> str | None:
    path = options.get(name)
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise WrongOption(name, f"{path[:200]} cannot be read on the driver: {error.strerror}") from None


def _seal_key(options: _Given, env: Mapping[str, str]) -> bytes | None:
    text = options.get("sealKey") or _from_file(options, "sealKeyFile") or env.get(ARCHIVE_KEY, "").strip()
    if not text:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise WrongOption("sealKey", "is not 32 bytes as 64 hex digits; `openssl rand -hex 32` makes one")
    return key
