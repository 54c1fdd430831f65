"""Settings: `pushq.toml`, then `PUSHQ_SECTION__KEY`, then flags; the later one wins, and each knows where it came from.

An unknown key is an error that names the nearest known one: a typing error must not become a default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints
from urllib.parse import urlsplit

import msgspec

from gateway.auto_create import AutoCreate, auto_create_entries
from push.problems import nearest

CONFIG_FILE: Final = "pushq.toml"
ENV_PREFIX: Final = "PUSHQ_"
DEFAULT: Final = "default"

ENV_OF_CLIENTS: Final = frozenset({"PUSHQ_URL", "PUSHQ_KEY"})
"""Variables of the command line and the SDKs; a server does not read them."""

LATER: Final[tuple[tuple[str, str], ...]] = (
    ("auth.jwt", "JWT"),
    ("http.trusted_proxies", "trusted proxies"),
)
"""Settings of later versions by their prefix: refused by name, so that nobody believes they are in force."""


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens, and which pages may use it."""

    listen: str = "127.0.0.1:8080"
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages, besides the server's own, that may connect: `https://shop.example`, or `*`."""


class Queues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done to queues from afar."""

    allow_delete_over_http: bool = False
    auto_create: tuple[AutoCreate, ...] = ()
    """Queues that a publish makes, by patterns of their names; the first that fits counts."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds an operator may move."""

    connections_max: int = 20_000
    """WebSockets and SSE streams of this process."""
    request_bytes_max: int = 16 * 1024 * 1024
    """The body of one HTTP request."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `pushq serve` can be told."""

    data: str = "./pushq-data"
    dev: bool = False
    gateways: int = 1
    resume_ms: int = 5000
    """How long a cut session's messages wait for it to come back."""
    http: Http = Http()
    queues: Queues = Queues()
    limits: Limits = Limits()

    @property
    def directory(self) -> Path:
        return Path(self.data)

    @property
    def address(self) -> Address:
        return parse_address(self.http.listen)


class Address(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", self.host) is not None

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class ConfigError(Exception):
    """A setting that cannot be: which, where it came from, and how to mend it. The process ends with code 3."""

    def __init__(self, key: str, detail: str, origin: str = "") -> None:
        super().__init__(f"{origin}: {detail}" if origin else detail)
        self.key = key
        self.origin = origin


class Described(NamedTuple):
    """One line of `pushq config show --origin`."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: dict[str, str]
    """Dotted key → the flag, variable or file that set it. Keys that are missing have their default."""

    def describe(self) -> list[Described]:
        """Every setting with its value and origin, in the order of the reference page."""
        return [
            Described(key, _value_of(self.settings, key), self.origins.get(key, DEFAULT)) for key in known_settings()
        ]


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str], config_file: Path | None = None) -> Loaded:
    """Settings from all sources. `flags` has dotted keys; None is a flag that was not given. Raises `ConfigError`.

    Without `config_file`, `pushq.toml` in the working folder is read if it is there.
    """
    found: dict[str, tuple[Any, str]] = {}
    for key, value, origin in (*_from_file(config_file), *_from_environment(environ), *_from_flags(flags)):
        found[key] = _checked(key, value, origin), origin
    tree: dict[str, Any] = {}
    for key, (value, _) in found.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    settings = msgspec.convert(tree, Settings)
    origins = {key: origin for key, (_, origin) in found.items()}
    _check_together(settings, origins)
    return Loaded(settings, origins)


def known_settings() -> dict[str, Any]:
    """Dotted key → type, for every setting there is."""
    known: dict[str, Any] = {}
    for name, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            known.update({f"{name}.{inner}": inner_kind for inner, inner_kind in get_type_hints(kind).items()})
        else:
            known[name] = kind
    return known


# ----------------------------------------------------------------------------------------------------- sources

Found = tuple[str, Any, str]


def _from_file(path: Path | None) -> Iterator[Found]:
    if path is None:
        path = Path(CONFIG_FILE)
        if not path.exists():
            return
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError("config", f"cannot be read: {error.strerror}; name a file that is there", str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"is no TOML: {error}", str(path)) from None
    yield from _flattened(content, str(path))


def _flattened(content: dict[str, Any], origin: str) -> Iterator[Found]:
    sections = {key.partition(".")[0] for key in known_settings() if "." in key} | {"auth"}
    for name, value in content.items():
        if name in sections and isinstance(value, dict):
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", inner_value, origin
        elif name in sections:
            raise ConfigError(name, f"{name!r} is a section; write it as [{name}]", origin)
        else:
            yield name, value, origin


def _from_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    kinds = known_settings()
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OF_CLIENTS:
            continue
        key = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
        value: Any = text
        if kinds.get(key) == tuple[str, ...]:
            value = [part.strip() for part in text.split(",") if part.strip()]
        yield key, value, variable


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Found]:
    for key, value in flags.items():
        if value is not None:
            yield key, str(value) if isinstance(value, Path) else value, "--" + key.rpartition(".")[2].replace("_", "-")


# ------------------------------------------------------------------------------------------------------ checks


def _checked(key: str, value: Any, origin: str) -> Any:
    for prefix, what in LATER:
        if key == prefix or key.startswith(prefix + "."):
            raise ConfigError(key, f"this version does not have {what} yet; remove {key!r}", origin)
    kinds = known_settings()
    if key not in kinds:
        raise ConfigError(key, f"there is no setting {key!r}{nearest(key, kinds)}", origin)
    if key == "queues.auto_create":
        try:
            return auto_create_entries(value)
        except ValueError as error:
            raise ConfigError(key, str(error), origin) from None
    # Only the environment has nothing but text; in a file "1" is a mistake.
    from_text = origin.startswith(ENV_PREFIX)
    try:
        value = msgspec.convert(value, kinds[key], strict=not from_text)
    except msgspec.ValidationError as error:
        raise ConfigError(key, f"{key} is {value!r}: {str(error).lower()}", origin) from None
    wrong = _wrong(key, value)
    if wrong:
        raise ConfigError(key, f"{key} is {value!r}: {wrong}", origin)
    return value


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "resume_ms": (0, 3_600_000),
    "limits.connections_max": (1, 1_000_000),
    "limits.request_bytes_max": (1024, 1024 * 1024 * 1024),
}


def _wrong(key: str, value: Any) -> str:
    if key in _RANGES:
        low, high = _RANGES[key]
        return "" if low <= value <= high else f"it goes from {low} to {high}"
    if key == "gateways":
        return "" if value == 1 else "this version runs one gateway; leave it out or say 1"
    if key == "data":
        return "" if value else "name a folder"
    if key == "http.listen":
        try:
            parse_address(value)
        except ValueError as error:
            return str(error)
    if key == "http.allowed_origins":
        return next((wrong for origin in value if (wrong := _wrong_origin(origin))), "")
    return ""


def _wrong_origin(origin: str) -> str:
    if origin == "*":
        return ""
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and f"{parts.scheme}://{parts.netloc}" == origin
    except ValueError:
        is_origin = False
    return "" if is_origin and parts.netloc else f"{origin!r} is no origin, such as https://shop.example"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[IPV6]:PORT`. Raises `ValueError` with a sentence."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("it is HOST:PORT, such as 127.0.0.1:8080")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, such as [::1]:8080")
    return Address(host, int(port))


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    if settings.dev and not settings.address.is_loopback:
        raise ConfigError(
            "http.listen",
            f"--dev hands out credentials, so it refuses to listen on {settings.http.listen}; "
            "listen on 127.0.0.1, or leave --dev out",
            origins.get("http.listen", DEFAULT),
        )


def _value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for step in key.split("."):
        value = getattr(value, step)
    return msgspec.to_builtins(list(value)) if isinstance(value, tuple) else value
