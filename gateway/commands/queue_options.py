"""The options of `pushq queue create` and `update`: one for each setting of a queue, generated from the config type, so
that none is missing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from backend_store.model import QueueConfig
from gateway.commands.figures import Whole
from gateway.commands.moments import DURATION
from gateway.queues.settings import FIXED, RANGES, SETTINGS

NULL: Final = "none"
"""Means null in a shell: `--max-messages none`. JSON's `null` is accepted, too."""

F = Callable[..., Any]


class _OrNull(click.ParamType[Any]):
    """A value, or `none` for null. Null stays a string until `_config`: for click, None means not given."""

    def __init__(self, kind: click.ParamType[Any]):
        self.kind = kind
        self.name = f"{kind.name}|{NULL}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NULL if value in (NULL, "null") else self.kind.convert(value, param, ctx)


class _JsonObject(click.ParamType[Any]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _object(value, lambda wrong: self.fail(wrong, param, ctx))


class _JsonObjectOrFile(_JsonObject):
    """`{…}`, or the name of a file that contains it."""

    name = "file|json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value.lstrip().startswith("{"):
            try:
                value = Path(value).read_text()
            except OSError as error:
                self.fail(f"cannot read {value!r}: {error.strerror or error}", param, ctx)
            except UnicodeDecodeError:
                self.fail(f"cannot read {value!r}: it is no text in UTF-8", param, ctx)
        return super().convert(value, param, ctx)


def _object(text: str, fail: Callable[[str], Any]) -> Any:
    try:
        fields = json.loads(text)
    except ValueError as error:
        return fail(f"not valid JSON: {error}")
    return fields if isinstance(fields, dict) else fail("not a JSON object")


def settings_options(*, for_update: bool = False) -> Callable[[F], F]:
    """Adds an option for every setting, `--config` and `--set`; the command gets them merged as `config`."""
    names = [name for name in SETTINGS if not (for_update and name in FIXED)]

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_config(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in names}
            config = _config(kwargs.pop("config_object"), given, kwargs.pop("settings"))
            return function(*args, config=config, **kwargs)

        decorated: F = with_config
        for option in reversed([*(_option(name, for_update) for name in names), _CONFIG, _SET]):
            decorated = option(decorated)
        return decorated

    return decorate


_SET = click.option(
    "--set",
    "settings",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Set a config field; VALUE is what the option of that field takes, or JSON. Repeatable.",
)
_CONFIG = click.option(
    "--config",
    "--config-file",
    "config_object",
    type=_JsonObjectOrFile(),
    help="Config fields as a JSON object, or a file that contains one; options and --set take precedence.",
)


def _option(name: str, for_update: bool) -> Callable[[F], F]:
    words = _help(name) + ("" if for_update else f"  [default: {_default(name)}]")
    return click.option(*_spelled(name), name, type=_type(name), default=None, help=words)


def _spelled(name: str) -> list[str]:
    """The option names. A duration carries its unit, so it may omit the `ms` of the setting's name."""
    option = f"--{name.replace('_', '-')}"
    return [option.replace("-ms", ""), option] if is_time(name) else [option]


def is_time(name: str) -> bool:
    """Whether a setting is in milliseconds."""
    return "ms" in name.split("_")


_HINTS: Final = get_type_hints(QueueConfig)
_DEFAULTS: Final[dict[str, Any]] = msgspec.to_builtins(QueueConfig())
_OBJECT: Final = _JsonObject()
_PLAIN: Final[dict[Any, click.ParamType[Any]]] = {int: Whole(), str: click.STRING, bool: click.BOOL}


def _type(name: str) -> click.ParamType[Any]:
    kind = _HINTS[name]
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    parts = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    found = _PLAIN.get(parts[0], _OBJECT) if len(parts) == 1 else _OBJECT
    found = DURATION if is_time(name) else found
    return _OrNull(found) if type(None) in get_args(kind) else found


def _help(name: str) -> str:
    setting = SETTINGS[name]
    return setting.means + (f" {setting.low:,} to {setting.high:,}." if name in RANGES else "")


def _default(name: str) -> str:
    value = _DEFAULTS[name]
    return SETTINGS[name].default or (NULL if value is None else json.dumps(value).strip('"'))


def _config(from_file: Mapping[str, Any] | None, given: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The fields of `--config`, then the options, then those of `--set`; later ones win."""
    config = dict(from_file or {})
    config |= {name: None if _is_null(name, value) else value for name, value in given.items() if value is not None}
    for setting in settings:
        field, equals, text = setting.partition("=")
        if not equals or not field:
            raise click.BadParameter(f"{setting!r} must be FIELD=VALUE", param_hint="--set")
        config[field] = _set_value(field, text)
    return config


def _set_value(field: str, text: str) -> Any:
    """The value in `--set FIELD=VALUE`: as the field's option takes it, unless that takes any text or a word of a few;
    the server knows whether such a word, or a field without an option, is good.
    """
    kind = _type(field) if field in SETTINGS else click.STRING
    plain = kind.kind if isinstance(kind, _OrNull) else kind
    if text == "null" or plain is click.STRING or isinstance(plain, click.Choice):
        try:
            return json.loads(text)
        except ValueError:
            return text
    try:
        value = kind.convert(text, None, None)
    except click.BadParameter as wrong:
        raise click.BadParameter(f"{field}: {wrong.message}", param_hint="--set") from None
    return None if value == NULL else value


def _is_null(name: str, value: Any) -> bool:
    return bool(value == NULL) and type(None) in get_args(_HINTS[name])
