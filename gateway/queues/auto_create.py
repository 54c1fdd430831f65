"""Creates queues on demand: a publish to an unknown name that matches a pattern of `queues.auto_create` makes the
queue."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backend_store.model import InvalidRequest, QueueConfig
from gateway.api.validate import wrong_name
from gateway.config.tables import check_unlike, explained, from_text, given_entries
from gateway.identity.authorization import owner_of
from gateway.limits import AUTO_CREATE_ENTRIES_MAX, NAME_CHARS_MAX
from gateway.queues.config import queue_config

if TYPE_CHECKING:
    from gateway.config.settings import Settings

_KEY: Final = "queues.auto_create"
_PATTERN: Final = re.compile(rf"[A-Za-z0-9_.*-]{{1,{NAME_CHARS_MAX}}}")


class AutoCreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry: queues whose name matches `pattern`, where `*` is any run of characters, get `config`, in the form
    that a caller would send."""

    pattern: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)


def auto_config(settings: Settings, name: str) -> QueueConfig | None:
    """The config of the queue that a publish to `name` creates, by the first entry that matches; None without one.

    Does not check that queues named by the config exist; `links.check_links` does.
    """
    if wrong_name(name) is not None or owner_of(name) != name:
        return None
    for entry in settings.queues.auto_create:
        if fnmatchcase(name, entry.pattern):
            return queue_config(entry.config, name)
    return None


def auto_create_entries(value: Any) -> tuple[AutoCreate, ...]:
    """Parses the setting's value, from a file or a variable. Raises `ValueError`, which names the entry and the field.

    A text is read as JSON, and so is a `config` given as text, because TOML has no null.
    """
    given = given_entries(value, _KEY, AUTO_CREATE_ENTRIES_MAX, "pattern and config")
    entries = tuple(_entry(each, f"{_KEY}[{number}]") for number, each in enumerate(given))
    more = ", which takes precedence; remove one of the two"
    check_unlike([entry.pattern for entry in entries], _KEY, "pattern", more)
    return entries


def _entry(given: Any, at: str) -> AutoCreate:
    if isinstance(given, dict) and "config" in given:
        given = given | {"config": from_text(given["config"], f"{at}.config")}
    try:
        entry = msgspec.convert(given, AutoCreate)
    except msgspec.ValidationError as error:
        raise ValueError(f"{at}: {explained(error, AutoCreate)}; an entry needs pattern and config") from None
    if _PATTERN.fullmatch(entry.pattern) is None:
        rule = f"a pattern has 1 to {NAME_CHARS_MAX} characters from A-Z a-z 0-9 _ . - and *"
        raise ValueError(f"{at}.pattern: {entry.pattern[:200]!r} cannot match any name; {rule}")
    try:
        queue_config(entry.config)
    except InvalidRequest as error:
        wrong = "; ".join(f"{at}.config{each.pointer.replace('/', '.')}: {each.detail}" for each in error.errors)
        raise ValueError(f"{wrong} (pattern {entry.pattern!r})") from None
    return entry
