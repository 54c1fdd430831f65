"""Generates the tables of the reference pages from the code; `python -m tests.support.reference_tables` writes them.

Only the first table below each heading named by `tables` changes; the prose stays. A test compares the result.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from backend_store.client import LEDGER_KINDS
from backend_store.model import AutoExpand, QueueConfig, Replication
from gateway.api.frames import SERVER_FRAMES
from gateway.api.table import OPERATIONS
from gateway.config.load import known_settings
from gateway.config.settings import Settings
from gateway.queues.rules import RULES
from gateway.queues.settings import AUTO_EXPAND, PART_RANGES, RANGES, REPLICATION, REPLICATION_RANGES, SETTINGS
from gateway.usage.schema import ROWS, FileKind, columns
from push.problems import KINDS
from push.protocol import ClientFrame
from push.session.close_codes import Close, may_reconnect
from tests.support import reference_words as words
from tests.support.reference_client import client_limits
from tests.support.reference_limits import limit_tables
from tests.support.reference_metrics import metrics_table

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
Table = list[str]


def tables() -> dict[str, dict[str, Table]]:
    """Page → heading → the table below it."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = metrics_table(Path(folder))
    return {
        "errors.md": {"All codes": _errors()},
        "close-codes.md": {"All codes": _closes()},
        "configuration.md": {"All settings": _settings()},
        "queue-settings.md": {
            "All settings": _queue_settings(),
            "Growing by itself": _auto_expand(),
            "Copies": _replication(),
            "What does not go together": _combinations(),
        },
        "http-api.md": {"All calls": _calls()},
        "websocket.md": {"From the client": _client_frames(), "From the server": _server_frames()},
        "metrics.md": {"All series": metrics},
        "limits.md": limit_tables() | {"Python client": client_limits()},
        "usage-schema.md": {
            "Rows of the ledger": _rows("ledger"),
            "Kinds of the ledger": _ledger_kinds(),
            "Rows of minutes": _rows("minutes"),
            "Rows of the audit": _rows("audit"),
        },
    }


def rewritten(text: str, made: dict[str, Table]) -> str:
    """The page with these tables in it. Raises `KeyError` for a heading without a table."""
    for heading, table in made.items():
        pattern = rf"(^## {re.escape(heading)}\n(?:(?!## |\|).*\n)*)((?:\|.*\n)+)"
        found = re.search(pattern, text, re.MULTILINE)
        if found is None:
            raise KeyError(f"no table below the heading {heading!r}")
        text = text[: found.start(2)] + "".join(f"{line}\n" for line in table) + text[found.end(2) :]
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def code(value: Any) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


# ------------------------------------------------------------------------------------------------------- tables


def _errors() -> Table:
    rows = ([f"[`{name}`](#{name})", str(kind.status), kind.title, words.RETRY[name]] for name, kind in KINDS.items())
    return table(["Code", "HTTP", "Title", "The same request again"], rows)


def _closes() -> Table:
    rows = (
        [code(str(each.value)), "reconnect" if may_reconnect(each) else "stop", words.CLOSES[each.name]]
        for each in Close
    )
    return table(["Code", "The client should", "Why"], rows)


def _settings() -> Table:
    defaults = msgspec.to_builtins(Settings())
    rows = []
    for key in known_settings():
        value = reduce(getitem, key.split("."), defaults)
        variable = "PUSHQ_" + key.upper().replace(".", "__")
        rows.append(
            [code(key), code(variable), code(list(value) if isinstance(value, tuple) else value), words.SETTINGS[key]]
        )
    return table(["Setting", "Variable", "Default", "What it does"], rows)


def _queue_settings() -> Table:
    defaults = msgspec.to_builtins(QueueConfig())
    rows = []
    for name, kind in get_type_hints(QueueConfig).items():
        setting = SETTINGS[name]
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        default = words.marked(setting.default) if setting.default else code(defaults[name])
        change = f"No: {setting.fixed}." if setting.fixed else setting.change.capitalize() + "." * bool(setting.change)
        texts = (words.marked(text, choices) or "–" for text in (change, setting.means, setting.cost))
        rows.append([code(name), _allowed(name, kind), default, *texts])
    return table(["Setting", "Values", "Default", "A change counts", "What it does", "What it costs"], rows)


def _auto_expand() -> Table:
    defaults = {field.name: field.default for field in msgspec.structs.fields(AutoExpand) if not field.required}
    rows = (
        [
            code(name),
            _allowed(name, kind, PART_RANGES),
            code(defaults[name]) if name in defaults else "must be given",
            words.marked(AUTO_EXPAND[name].means),
        ]
        for name, kind in get_type_hints(AutoExpand).items()
    )
    return table(["Part", "Values", "Default", "What it does"], rows)


def _allowed(name: str, kind: Any, ranges: Mapping[str, tuple[int, int]] = RANGES) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(code, get_args(kind)))
    if name not in ranges:
        return words.QUEUE_VALUES[name]
    low, high = ranges[name]
    return f"{low:,} to {high:,}" + (", `null`" if type(None) in get_args(kind) else "")


def _combinations() -> Table:
    rows = ([words.marked(part) for part in (rule.title, rule.why, rule.instead)] for rule in RULES)
    return table(["Together", "Why not", "Instead"], rows)


def _replication() -> Table:
    rows = (
        [code(name), _allowed(name, get_args(kind)[0], REPLICATION_RANGES), words.marked(REPLICATION[name].means)]
        for name, kind in get_type_hints(Replication).items()
    )
    return table(["Part", "Values", "Meaning"], rows)


def _calls() -> Table:
    rows = (
        [code(f"{o.method} {o.path}"), o.summary, o.scope, ", ".join(map(str, o.answers)) or "–"] for o in OPERATIONS
    )
    return table(["Call", "What it does", "Scope", "Answers"], rows)


def _rows(kind: FileKind) -> Table:
    rows = (
        [code(c.name), c.type + (", or null" if c.nullable else ""), c.text and f"{c.text[0].upper()}{c.text[1:]}."]
        for c in columns(ROWS[kind])
    )
    return table(["Field", "Type", "Meaning"], rows)


def _ledger_kinds() -> Table:
    rows = ([code(kind), LEDGER_KINDS.get(kind, "there"), text] for kind, text in words.LEDGER_KINDS.items())
    assert words.LEDGER_KINDS.keys() == LEDGER_KINDS.keys() | {"held"}, "each kind needs a description"
    return table(["Kind", "Counts as", "Messages that"], rows)


def _client_frames() -> Table:
    kinds: tuple[type[msgspec.Struct], ...] = get_args(ClientFrame)
    rows = ([code(_fields(kind)), words.FRAMES[_tag(kind)]] for kind in kinds)
    return table(["Frame", "What it does"], rows)


def _server_frames() -> Table:
    rows = ([code(_fields(kind)), words.paragraph(kind.__doc__ or "")] for kind in SERVER_FRAMES)
    return table(["Frame", "Meaning"], rows)


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _fields(kind: type[msgspec.Struct]) -> str:
    """`deliver {sub, messages, cursor?}`"""
    names = [f.encode_name + ("" if f.required else "?") for f in msgspec.structs.fields(kind) if f.encode_name != "id"]
    return f"{_tag(kind)} {{{', '.join(names)}}}" if names else _tag(kind)


def main() -> None:
    for name, made in tables().items():
        page = REFERENCE / name
        page.write_text(rewritten(page.read_text(), made))


if __name__ == "__main__":
    main()
