"""Loads settings from `pushq.toml`, then `PUSHQ_SECTION__KEY`, then flags; the later source wins, and origins are kept.

An unknown key is an error that names the nearest known one, so that a typo never becomes a default.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from gateway.admission.rate_rules import rate_rules
from gateway.alerts.core.addresses import parse_networks
from gateway.alerts.limits import WEBHOOK_NETWORKS_MAX
from gateway.clusters.configured import cluster_entries, wrong_cluster_name
from gateway.config.addresses import named_twice, parse_address
from gateway.config.backend_rules import BACKEND_CHECKS, wrong_backend
from gateway.config.cluster_rules import wrong_clusters
from gateway.config.listener_rules import wrong_together
from gateway.config.manager_rules import MANAGER_CHECKS, MANAGER_RANGES, shown_provisioner, wrong_manager
from gateway.config.settings import Encryption, Redis, Settings
from gateway.config.tables import one_of
from gateway.identity.issuers import issuer_entries, without_secrets, wrong_issuers
from gateway.limits import (
    DATA_KEY_DAYS_MAX,
    JWKS_MAX_AGE_SECONDS_MAX,
    JWKS_MAX_AGE_SECONDS_MIN,
    JWT_KEY_DAYS_MAX,
    JWT_LEEWAY_SECONDS_MAX,
    MASTER_TIMEOUT_MS_MAX,
)
from gateway.listener.proxy_header import networks
from gateway.processes.limits import GATEWAYS_MAX
from gateway.queues.auto_create import auto_create_entries
from gateway.roles.metadata_listener import wrong_files
from push.limits import PUBLISH_MS_MAX
from push.problems import nearest

CONFIG_FILE: Final = "pushq.toml"
ENV_PREFIX: Final = "PUSHQ_"
DEFAULT: Final = "default"

ENV_OF_CLIENTS: Final = frozenset({"PUSHQ_URL", "PUSHQ_CONTEXT", "PUSHQ_KEY", "PUSHQ_CA_FILE", "PUSHQ_CERT_FILE"})
"""Variables of the CLI and the SDKs; a server does not read them."""
ENV_OF_MASTERS: Final = frozenset({"PUSHQ_MASTER_KEY", "PUSHQ_MASTER_KEY_FILE"})
"""Not settings: with `encryption.master = "environment"` they contain, or name the file of, the master key."""


class ConfigError(Exception):
    """An invalid setting: which one, where it came from, and how to mend it. The process ends with code 3."""

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
    """Dotted key → the flag, variable or file that set it. Missing keys have their default."""

    def describe(self) -> list[Described]:
        """Every setting with its value and origin, in the order of the reference page."""
        return [
            Described(key, value_of(self.settings, key), self.origins.get(key, DEFAULT)) for key in known_settings()
        ]


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str], config_file: Path | None = None) -> Loaded:
    """Merges and checks all sources. `flags` has dotted keys; None is a flag that was not given. Raises `ConfigError`.

    Without `config_file`, reads `pushq.toml` in the working folder if it exists.
    """
    found: dict[str, tuple[Any, str]] = {}
    for key, value, origin in (*_from_file(config_file), *_from_environment(environ), *_from_flags(flags)):
        found[key] = _checked(key, value, origin), origin
    tree: dict[str, Any] = {}
    for key, (value, _) in found.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    settings = msgspec.convert(tree, Settings)
    origins = {key: origin for key, (_, origin) in found.items()}
    _check_together(settings, origins)
    return Loaded(settings, origins)


@functools.cache
def known_settings() -> Mapping[str, Any]:
    """Dotted key → type, for every setting."""
    return MappingProxyType(dict(_settings_of(Settings, "")))


def _settings_of(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, inner in get_type_hints(kind).items():
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _settings_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


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
        raise ConfigError("config", f"cannot be read: {error.strerror}; name an existing file", str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("config", "not valid TOML: the file is not UTF-8 text", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("config", f"not valid TOML: {error}", str(path)) from None
    yield from _flattened(content, str(path))


def _flattened(content: dict[str, Any], origin: str, prefix: str = "") -> Iterator[Found]:
    for name, value in content.items():
        key = prefix + name
        if key not in _sections():
            yield key, value, origin
        elif isinstance(value, dict):
            yield from _flattened(value, origin, key + ".")
        else:
            raise ConfigError(key, f"{key!r} is a section; write it as [{key}]", origin)


@functools.cache
def _sections() -> frozenset[str]:
    """Dotted names of all sections."""
    keys = known_settings()
    return frozenset(".".join(steps[:n]) for steps in (key.split(".") for key in keys) for n in range(1, len(steps)))


def _from_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    kinds = known_settings()
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OF_CLIENTS | ENV_OF_MASTERS:
            continue
        key = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
        value: Any = text
        if get_origin(kinds.get(key)) is tuple and key not in _LISTS:
            value = [part.strip() for part in text.split(",") if part.strip()]
        yield key, value, variable


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Found]:
    for key, value in flags.items():
        if value is not None:
            yield key, str(value) if isinstance(value, Path) else value, "--" + key.rpartition(".")[2].replace("_", "-")


# ------------------------------------------------------------------------------------------------------ checks


def _checked(key: str, value: Any, origin: str) -> Any:
    kinds = known_settings()
    if key not in kinds:
        raise ConfigError(key, f"unknown setting {key!r}{nearest(key, kinds)}", origin)
    if key in _LISTS:
        try:
            return _LISTS[key](value)
        except ValueError as error:
            raise ConfigError(key, str(error), origin) from None
    # Only environment variables are always text; in a file "1" is a mistake.
    from_text = origin.startswith(ENV_PREFIX)
    try:
        value = msgspec.convert(value, kinds[key], strict=not from_text)
    except msgspec.ValidationError as error:
        said = str(error).lower()
        choices = f"; must be {one_of(kinds[key])}" if said.startswith("invalid enum value") else ""
        raise ConfigError(key, f"{key} is {shown(key, value)!r}: {said}{choices}", origin) from None
    wrong = _wrong(key, value)
    if wrong:
        raise ConfigError(key, f"{key} is {shown(key, value)!r}: {wrong}", origin)
    return value


_LISTS: Final[dict[str, Callable[[Any], Any]]] = {
    "auth.jwt.issuers": issuer_entries,
    "queues.auto_create": auto_create_entries,
    "store.clusters": cluster_entries,
    "throttling.rules": rate_rules,
}
"""Settings that are lists of tables → the function that reads and checks them."""

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "dispatch.timeout_ms": (1, PUBLISH_MS_MAX),
    "catalogue.stale_max_s": (5, 30 * 24 * 3600),
    "catalogue.identity_stale_max_s": (5, 24 * 3600),
    "resume_ms": (0, 3_600_000),
    "auth.jwt.jwks_max_age_s": (JWKS_MAX_AGE_SECONDS_MIN, JWKS_MAX_AGE_SECONDS_MAX),
    "auth.jwt.leeway_s": (0, JWT_LEEWAY_SECONDS_MAX),
    "auth.jwt.key_days_max": (0, JWT_KEY_DAYS_MAX),
    "limits.connections_max": (1, 1_000_000),
    **{
        f"limits.{what}_per_{whom}_max": (0, 1_000_000)
        for what in ("connections", "subscriptions")
        for whom in ("tenant", "principal", "address")
    },
    "limits.open_per_address_max": (0, 1_000_000),
    "limits.request_bytes_max": (1024, 1024 * 1024 * 1024),
    "limits.leftover_bytes_max": (0, 1 << 40),
    "limits.leftover_seconds_max": (0, 3600),
    "storage.publish_stop_percent": (1, 99),
    "storage.clock_jump_days_max": (1, 36_500),
    "usage.period_seconds": (1, 3600),
    "usage.bytes_max": (1024 * 1024, 1 << 50),
    "usage.kept_days": (1, 3660),
    "encryption.command_timeout_ms": (100, MASTER_TIMEOUT_MS_MAX),
    "encryption.data_key_days": (1, DATA_KEY_DAYS_MAX),
    "limits.accepts_per_s": (1, 1_000_000),
    "limits.accepts_burst": (1, 1_000_000),
    "limits.drain_window_s": (0, 60),
    "limits.unread_s": (0, 3600),
    "cluster.lanes": (1, 16),
    "cluster.shards": (1, 256),
    "cluster.async_shards": (0, 64),
    "cluster.replicas": (1, 7),
    "cluster.min_in_sync": (1, 7),
    "cluster.replace_after_s": (0, 604_800),
    "cluster.rebalance_after_s": (0, 604_800),
    "cluster.move_bytes_per_s": (0, 1 << 40),
    "cluster.scrub_bytes_per_s": (0, 1 << 40),
    "cluster.scrub_every_s": (0, 1 << 31),
    "overload.lag_ms_max": (10, 60_000),
    "overload.sojourn_ms_max": (5, 60_000),
    **MANAGER_RANGES,
}
MEMORY_BYTES_MIN: Final = 32 * 1024 * 1024
"""Minimum of `overload.memory_max_bytes`: the process itself needs most of that."""
BALLAST_BYTES_MIN: Final = 1024 * 1024
"""Minimum of `storage.ballast_bytes`: acks need room after the disk is full."""


def _wrong(key: str, value: Any) -> str:
    if key in _RANGES:
        low, high = _RANGES[key]
        return "" if low <= value <= high else f"must be between {low} and {high}"
    if key == "overload.memory_max_bytes":
        return "" if value == 0 or value >= MEMORY_BYTES_MIN else f"must be 0 or at least {MEMORY_BYTES_MIN}"
    if key == "storage.ballast_bytes":
        return "" if value == 0 or value >= BALLAST_BYTES_MIN else f"must be 0 or at least {BALLAST_BYTES_MIN}"
    if key == "gateways":
        return "" if 1 <= value <= GATEWAYS_MAX else f"must be between 1 and {GATEWAYS_MAX}"
    if key == "data":
        return "" if value else "must name a folder"
    if key in BACKEND_CHECKS:
        return BACKEND_CHECKS[key](value)
    if key in MANAGER_CHECKS:
        return MANAGER_CHECKS[key](value)
    if key == "http.listen" or (key == "metrics.listen" and value):
        try:
            parse_address(value)
        except ValueError as error:
            return str(error)
    if key == "metadata.url":
        return _wrong_metadata(value)
    if key == "store.backends":
        wrong = next((f"{one!r}: {wrong}" for one in value if (wrong := _wrong_backend(one))), "")
        return wrong or named_twice(value)
    if key == "store.cluster":
        return wrong_cluster_name(value)
    if key == "redis.url":
        return _wrong_redis(value)
    if key == "auth.jwt.audience":
        return "" if value else "must be the value that the claim `aud` of a token has to contain"
    if key == "http.allowed_origins":
        return next((wrong for origin in value if (wrong := _wrong_origin(origin))), "")
    if key == "alerts.webhook_networks":
        try:
            parse_networks(value)
        except ValueError as error:
            return str(error)
        most = WEBHOOK_NETWORKS_MAX
        return "" if len(value) <= most else f"must have at most {most} entries, not {len(value)}"
    if key == "http.trusted_proxies":
        try:
            networks(value)
        except ValueError as error:
            return str(error)
    return ""


def _wrong_metadata(urls: str) -> str:
    return next((wrong for url in urls.split(",") if (wrong := _wrong_metadata_host(url.strip()))), "") if urls else ""


def _wrong_metadata_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_socket = parts.scheme in ("ws", "wss") and parts.path in ("", "/") and not parts.query and bool(parts.port)
        address = parse_address(f"{parts.hostname}:{parts.port}") if is_socket else None
    except ValueError:
        address = None
    if address is None:
        return "must be wss://HOST:PORT, or ws://HOST:PORT on this machine, such as ws://127.0.0.1:8081"
    if parts.scheme == "ws" and not address.is_loopback:
        return f"{address.host} is another machine, which requires TLS: wss://{parts.netloc}"
    return ""


def _wrong_backend(address: str) -> str:
    try:
        return "" if parse_address(address).port else "a backend's port must be above 0"
    except ValueError as error:
        return str(error)


def _wrong_redis(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_redis = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_redis = False
    return "" if is_redis or not url else "must be redis://[:PASSWORD@]HOST:PORT/DB, or rediss:// for TLS"


def _wrong_origin(origin: str) -> str:
    if origin == "*":
        return ""
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and f"{parts.scheme}://{parts.netloc}" == origin
    except ValueError:
        is_origin = False
    return (
        "" if is_origin and parts.netloc else f"invalid origin {origin!r}; use an origin such as https://shop.example"
    )


def _wrong_with_several(settings: Settings) -> tuple[str, str] | None:
    """A setting that does not work with several gateway processes, and why; None if there is none."""
    if settings.dev:
        return "dev", "--dev works with a single gateway process only; remove --dev or --gateways"
    if settings.store.backends:
        return "store.backends", (
            "--gateways starts its own storage process and cannot be combined with store.backends; to run more "
            "gateways in front of backends, start `pushq serve` several times, each with its own folder and port"
        )
    if settings.metadata.url:
        return "metadata.url", "metadata.url works with a single process only; remove metadata.url"
    return None


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    if settings.dev and not settings.address.is_loopback:
        raise ConfigError(
            "http.listen",
            f"--dev hands out credentials, so it refuses to listen on {settings.http.listen}; listen on 127.0.0.1, "
            "or remove --dev",
            origins.get("http.listen", DEFAULT),
        )
    if settings.gateways > 1 and (wrong := _wrong_with_several(settings)) is not None:
        key, detail = wrong
        raise ConfigError(key, f"{detail}, or remove --gateways", origins.get(key, DEFAULT))
    if settings.throttling.store == "redis" and not (settings.redis.url or settings.redis.url_file):
        detail = "throttling.store redis requires redis.url or redis.url_file"
        raise ConfigError("throttling.store", detail, origins.get("throttling.store", DEFAULT))
    if (wrong := wrong_issuers(settings.auth.jwt)) is not None:
        raise ConfigError(wrong[0], wrong[1], origins.get(wrong[0], origins.get("auth.jwt.issuers", DEFAULT)))
    if (wrong := wrong_together(settings.http)) is not None:
        raise ConfigError(*wrong, origins.get(wrong[0], DEFAULT))
    if bool(settings.metadata.url) != bool(settings.metadata.secret_file):
        detail = (
            "metadata.url and metadata.secret_file must be set together; the secret is in the service's data folder"
        )
        raise ConfigError("metadata.secret_file", detail, origins.get("metadata.secret_file", DEFAULT))
    if (wrong := wrong_files(settings.metadata)) is not None:
        raise ConfigError(*wrong, origins.get(wrong[0], DEFAULT))
    _check_store(settings, origins)
    if (wrong := wrong_backend(settings.node, settings.cluster)) is not None:
        raise ConfigError(*wrong, origins.get(wrong[0], DEFAULT))
    if (wrong := wrong_manager(settings.manager)) is not None:
        raise ConfigError(*wrong, origins.get(wrong[0], DEFAULT))
    _check_encryption(settings.encryption, origins)
    if settings.redis.url and settings.redis.url_file:
        detail = "redis.url and redis.url_file are mutually exclusive; remove one of them"
        raise ConfigError("redis.url_file", detail, origins.get("redis.url_file", DEFAULT))
    if settings.redis.url_file:
        _check_redis_file(settings.redis, origins.get("redis.url_file", DEFAULT))


def _check_store(settings: Settings, origins: Mapping[str, str]) -> None:
    store = settings.store
    files = (store.tls_cert, store.tls_key, store.tls_ca)
    if store.backends and settings.metadata.url:
        detail = "with store.backends, the definitions come from the backends; remove metadata.url"
        raise ConfigError("metadata.url", detail, origins.get("metadata.url", DEFAULT))
    if any(files) and not all(files):
        detail = "store.tls_cert, store.tls_key and store.tls_ca must be set together; create them with `pushq ca`"
        raise ConfigError("store.tls_cert", detail, origins.get("store.tls_cert", DEFAULT))
    named = {"store.backends": store.backends, "store.clusters": [at for one in store.clusters for at in one.backends]}
    for key, backends in named.items():
        if not any(files) and not all(parse_address(one).is_loopback for one in backends):
            which = "backends on other machines require TLS"
            detail = f"{which}: set store.tls_cert, store.tls_key and store.tls_ca"
            raise ConfigError("store.tls_cert", detail, origins.get(key, DEFAULT))
    if (wrong := wrong_clusters(store, settings.cluster)) is not None:
        raise ConfigError(wrong[0], wrong[1], origins.get(wrong[0], DEFAULT))


def _check_encryption(encryption: Encryption, origins: Mapping[str, str]) -> None:
    is_command = encryption.master == "command"
    for name, value in (("command", encryption.command), ("command_key", encryption.command_key)):
        key = f"encryption.{name}"
        if is_command and not value:
            detail = f'encryption.master is "command", so {key} must be set'
            raise ConfigError(key, detail, origins.get("encryption.master", DEFAULT))
        if value and not is_command:
            detail = f'{key} applies only with encryption.master = "command"; set that, or remove {key}'
            raise ConfigError(key, detail, origins.get(key, DEFAULT))


def _check_redis_file(redis: Redis, origin: str) -> None:
    try:
        wrong = _wrong_redis(redis.address()) if redis.address() else "the file is empty"
    except (OSError, UnicodeDecodeError) as error:
        wrong = f"cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
    if wrong:
        raise ConfigError("redis.url_file", f"redis.url_file is {redis.url_file!r}: {wrong}", origin)


SECRETS: Final = frozenset({"redis.url"})
"""Settings whose value may contain a password, which is never shown."""


def shown(key: str, value: Any) -> Any:
    """A setting's value without secrets."""
    if key == "auth.jwt.issuers":
        return tuple(without_secrets(value))
    if key == "manager.provisioner":
        return shown_provisioner(value)
    if key not in SECRETS or not value:
        return value
    head, at, rest = str(value).rpartition("@")
    scheme, slashes, _ = head.partition("://")
    return (f"{scheme}://***@{rest}" if slashes else f"***@{rest}") if at else value


def value_of(settings: Settings, key: str) -> Any:
    """The value of a setting by its dotted key, without secrets."""
    value: Any = settings
    for step in key.split("."):
        value = getattr(value, step)
    value = shown(key, value)
    return msgspec.to_builtins(list(value)) if isinstance(value, tuple) else value
