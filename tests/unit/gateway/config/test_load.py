"""Settings: three sources, one order, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.addresses import parse_address
from gateway.config.load import ConfigError, Loaded, known_settings, load_settings
from gateway.config.settings import Settings


def load(
    tmp_path: Path, text: str = "", env: dict[str, str] | None = None, flags: dict[str, Any] | None = None
) -> Loaded:
    file = tmp_path / "pushq.toml"
    file.write_text(text)
    return load_settings(flags or {}, env or {}, file)


def refused(tmp_path: Path, *args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, *args, **kwargs)
    return error.value


def test_without_any_source_everything_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings({}, {})
    assert loaded.settings == Settings()
    assert loaded.settings.resume_ms == 5000
    assert loaded.settings.limits.connections_max == 20_000
    assert {line.origin for line in loaded.describe()} == {"default"}


def test_a_pushq_toml_in_the_working_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pushq.toml").write_text("resume_ms = 7")
    assert load_settings({}, {}).settings.resume_ms == 7


def test_the_environment_wins_over_the_file_and_flags_over_both(tmp_path: Path) -> None:
    text = 'resume_ms = 1\ndata = "a"\n[http]\nlisten = "127.0.0.1:1"\n[queues]\nallow_delete_over_http = true'
    env = {"PUSHQ_HTTP__LISTEN": "127.0.0.1:2", "PUSHQ_DATA": "b", "PUSHQ_URL": "x", "PUSHQ_KEY": "y", "HOME": "/"}
    loaded = load(tmp_path, text, env, {"data": "c", "dev": None})
    settings = loaded.settings
    assert (settings.resume_ms, settings.data, settings.http.listen) == (1, "c", "127.0.0.1:2")
    assert settings.queues.allow_delete_over_http
    assert loaded.origins == {
        "resume_ms": str(tmp_path / "pushq.toml"),
        "queues.allow_delete_over_http": str(tmp_path / "pushq.toml"),
        "http.listen": "PUSHQ_HTTP__LISTEN",
        "data": "--data",
    }


def test_every_setting_is_described_with_its_origin(tmp_path: Path) -> None:
    described = load(tmp_path, env={"PUSHQ_RESUME_MS": "9"}).describe()
    assert [line.key for line in described] == list(known_settings())
    assert [(line.value, line.origin) for line in described if line.key == "resume_ms"] == [(9, "PUSHQ_RESUME_MS")]


@pytest.mark.parametrize(
    ("text", "env", "key", "says"),
    [
        ("resume_m = 5", {}, "resume_m", "did you mean 'resume_ms'?"),
        ("[http]\nlisen = 5", {}, "http.lisen", "did you mean 'http.listen'?"),
        ("[htp]\nlisten = 5", {}, "htp", "unknown setting 'htp'"),
        ("", {"PUSHQ_HTTP__LISTENN": "x"}, "http.listenn", "PUSHQ_HTTP__LISTENN: unknown setting"),
        ("http = 3", {}, "http", "write it as [http]"),
        ('resume_ms = "5"', {}, "resume_ms", "expected `int`, got `str`"),
        ("resume_ms = -1", {}, "resume_ms", "must be between 0 and"),
        ("", {"PUSHQ_RESUME_MS": "soon"}, "resume_ms", "PUSHQ_RESUME_MS: resume_ms is 'soon'"),
        ("gateways = 0", {}, "gateways", "must be between 1 and"),
        ("gateways = 65", {}, "gateways", "must be between 1 and"),
        ("gateways = 2\ndev = true", {}, "dev", "--dev works with a single gateway process only; remove"),
        ('gateways = 2\n[metadata]\nurl = "ws://127.0.0.1:1"\nsecret_file = "a"', {}, "metadata.url", "single process"),
        ('[metadata]\nurl = "ws://10.0.0.1:1"\nsecret_file = "a"', {}, "metadata.url", "which requires TLS: wss://10.0.0.1:1"),
        ('[metadata]\nurl = "http://10.0.0.1:1"\nsecret_file = "a"', {}, "metadata.url", "must be wss://HOST:PORT"),
        ('[metadata]\nurl = "wss://10.0.0.1:1"\nsecret_file = "a"', {}, "metadata.url", "requires a client"),
        ('[metadata]\ntls_ca = "a"', {}, "metadata.tls_ca", "must be set together"),
        ('gateways = 2\n[store]\nbackends = ["127.0.0.1:1"]', {}, "store.backends", "its own storage process"),
        ('[http]\nlisten = "8080"', {}, "http.listen", "HOST:PORT"),
        ('[http]\nallowed_origins = ["shop.example"]', {}, "http.allowed_origins", "use an origin such as https://shop.example"),
        ('[http]\nallowed_origins = ["https://shop.example/"]', {}, "http.allowed_origins", "use an origin such as https://shop.example"),
        ('[http]\ntrusted_proxies = ["10.0.0.1"]', {}, "http.trusted_proxies", "never to X-Forwarded-For"),
        ('[http]\ntrusted_proxies = ["10.0.0"]', {}, "http.trusted_proxies", "is not an address or network"),
        ("[http]\nproxy_protocol = true", {}, "http.proxy_protocol", "requires http.trusted_proxies"),
        ('[http]\ntls_cert = "a"', {}, "http.tls_cert", "http.tls_cert requires http.tls_key"),
        ('[http]\ntls_key = "a"', {}, "http.tls_key", "http.tls_key requires http.tls_cert"),
        ('[http]\ntls_client_ca = "a"', {}, "http.tls_client_ca", "requires http.tls_cert"),
        (
            '[http]\ntls_cert = "a"\ntls_key = "b"\nproxy_protocol = true\ntrusted_proxies = ["10.0.0.1"]',
            {},
            "http.tls_cert",
            "this version supports the PROXY header only without",
        ),
        ("[auth.jwt]\nleeway = 1", {}, "auth.jwt.leeway", "did you mean 'auth.jwt.leeway_s'"),
        ("[auth.jwt]\nleeway_s = 61", {}, "auth.jwt.leeway_s", "must be between 0 and 60"),
        ("[auth.jwt]\njwks_max_age_s = 1", {}, "auth.jwt.jwks_max_age_s", "must be between 10 and"),
        ("", {"PUSHQ_LOGS__FORMAT": "xml"}, "logs.format", "'xml'; must be auto, json or text"),
        ('[throttling]\nstore = "disk"', {}, "throttling.store", "'disk'; must be memory or redis"),
        ('[auth.jwt]\nalgorithms = ["none"]', {}, "auth.jwt.algorithms", "invalid enum value 'none'"),
        ("", {"PUSHQ_AUTH__JWT__ALGORITHMS": "HS256,RS512"}, "auth.jwt.algorithms", "invalid enum value 'rs512'"),
        ("", {"PUSHQ_AUTH__JWT__ISSUERS": "[{}]"}, "auth.jwt.issuers", "auth.jwt.issuers[0]: Object missing required"),
        ('[auth.jwt]\nalgorithms = ["ES256"]\nissuers = [{issuer = "a", tenant = "t", secret = "%s"}]' % ("s" * 32), {},
         "auth.jwt.algorithms", "auth.jwt.issuers[0] has secret, which works with HS256, but only ES256 is allowed"),
        ("[[queues.auto_create]]\npattern = 1", {}, "queues.auto_create", "Expected `str`, got `int`"),
        ('[[queues.auto_create]]\npattern = "a*"\nconfig = {priorities = 11}', {}, "queues.auto_create",
         "queues.auto_create[0].config.priorities: priorities must be between 1 and 10, not 11 (pattern 'a*')"),
        ("[queues]\nauto_create = 5", {}, "queues.auto_create", "must be a list: write"),
        ("", {"PUSHQ_QUEUES__AUTO_CREATE": "jobs.*"}, "queues.auto_create", "is not valid JSON"),
        ("[storage]\npublish_stop_percent = 100", {}, "storage.publish_stop_percent", "must be between 1 and 99"),
        ("[storage]\nballast_bytes = 1024", {}, "storage.ballast_bytes", "must be 0 or at least 1048576"),
        ("resume_ms = ", {}, "config", "not valid TOML"),
        ('data = ""', {}, "data", "name a folder"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_origin_and_the_fix(
    tmp_path: Path, text: str, env: dict[str, str], key: str, says: str
) -> None:
    error = refused(tmp_path, text, env)
    assert error.key == key
    assert says in str(error)
    assert error.origin in (str(tmp_path / "pushq.toml"), *env)


AUTO_CREATE = """
[[queues.auto_create]]
pattern = "jobs.*"
[queues.auto_create.config]
max_attempts = 5
tags = {team = "a"}

[[queues.auto_create]]
pattern = "news"
config = {kind = "stream"}
"""


def test_queues_that_make_themselves_come_from_the_file_or_the_environment(tmp_path: Path) -> None:
    entries = [
        {"pattern": "jobs.*", "config": {"max_attempts": 5, "tags": {"team": "a"}}},
        {"pattern": "news", "config": {"kind": "stream"}},
    ]
    for loaded in (load(tmp_path, AUTO_CREATE), load(tmp_path, env={"PUSHQ_QUEUES__AUTO_CREATE": json.dumps(entries)})):
        assert [entry.pattern for entry in loaded.settings.queues.auto_create] == ["jobs.*", "news"]
        shown = next(line for line in loaded.describe() if line.key == "queues.auto_create")
        assert json.loads(json.dumps(shown.value)) == entries and shown.origin != "default"


def test_a_config_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "missing.toml")


def test_lists_in_the_environment_are_separated_by_commas(tmp_path: Path) -> None:
    loaded = load(tmp_path, env={"PUSHQ_HTTP__ALLOWED_ORIGINS": "https://a.example, http://localhost:3000"})
    assert loaded.settings.http.allowed_origins == ("https://a.example", "http://localhost:3000")


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_switches_in_the_environment_are_words(tmp_path: Path, text: str, wanted: bool) -> None:
    assert load(tmp_path, env={"PUSHQ_DEV": text}).settings.dev is wanted


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "192.168.1.4:80", "[::]:8080", "example.com:1"])
def test_dev_refuses_an_address_that_others_reach(tmp_path: Path, listen: str) -> None:
    assert "--dev" in str(refused(tmp_path, flags={"dev": True, "http.listen": listen}))


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.9.9.9:1"])
def test_dev_takes_a_loopback_address(tmp_path: Path, listen: str) -> None:
    assert load(tmp_path, flags={"dev": True, "http.listen": listen}).settings.dev


def test_an_address_has_a_url_that_works_on_this_machine() -> None:
    urls = [parse_address(text).url for text in ("127.0.0.1:1", "0.0.0.0:2", "[::1]:3", "[::]:4", "example.com:5")]
    assert urls == [
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
        "http://[::1]:3",
        "http://[::1]:4",
        "http://example.com:5",
    ]


def test_the_url_of_redis_is_shown_without_its_password(tmp_path: Path) -> None:
    loaded = load(tmp_path, '[redis]\nurl = "redis://:open-sesame@10.0.0.1:6379/0"')
    assert loaded.settings.redis.address() == "redis://:open-sesame@10.0.0.1:6379/0"
    assert {line.key: line.value for line in loaded.describe()}["redis.url"] == "redis://***@10.0.0.1:6379/0"


def test_a_wrong_url_of_redis_is_refused_without_telling_its_password(tmp_path: Path) -> None:
    error = refused(tmp_path, '[redis]\nurl = "http://:open-sesame@10.0.0.1"')
    assert error.key == "redis.url" and "rediss://" in str(error)
    assert "open-sesame" not in str(error)


def test_the_url_of_redis_may_stand_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "redis.url"
    secret.write_text("redis://127.0.0.1:6379/0\n")
    assert load(tmp_path, f'[redis]\nurl_file = "{secret}"').settings.redis.address() == "redis://127.0.0.1:6379/0"
    assert "cannot be read" in str(refused(tmp_path, '[redis]\nurl_file = "/nowhere"'))
    both = f'[redis]\nurl_file = "{secret}"\nurl = "redis://127.0.0.1"'
    assert "redis.url and redis.url_file are mutually exclusive;" in str(refused(tmp_path, both))
