"""`pushq queue export` and `import`: the settings of queues as one JSON document, for a repository."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from backend_store.model import ONE_NODE
from backend_store.model import PushqError as ServerError
from gateway.api.validate import check_new_queue_name
from gateway.commands.asking import ask
from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure, translate
from gateway.commands.names import queue_names
from gateway.commands.output import progress, put, put_json, tell
from gateway.commands.target import Target, target_options
from gateway.identity.authorization import owner_of
from gateway.queues.config import queue_config, shown_config
from gateway.queues.settings import FIXED, SETTINGS
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin

VERSION = 1
FILE_BYTES_MAX = 64 * 1024 * 1024
LINKS = ("dead_letter_queue", "colocate_with")
"""Settings that name another queue, which must exist first."""

Config = dict[str, Any]


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One queue of a document. A setting left out gets its default in a new queue, and stays in an existing one."""

    name: str
    config: Config


class Document(msgspec.Struct, forbid_unknown_fields=True):
    queues: list[Entry]
    version: int = VERSION


class Planned(msgspec.Struct):
    """The plan for one queue."""

    name: str
    result: str
    """missing, same, differs or fixed; afterwards created or updated."""
    changes: dict[str, Config]
    """`{setting: {"is", "wanted"}}` of an existing queue."""


# ----------------------------------------------------------------------------------------------------------- export


@command("export")
@click.argument("names", metavar="[QUEUE]...", nargs=-1, shell_complete=queue_names)
@click.option("--all", "is_all", is_flag=True, help="Export all queues the key may view.")
@target_options
@json_option
def export(names: tuple[str, ...], is_all: bool, target: Target, as_json: bool) -> None:
    """Export queue settings to stdout, as JSON for `pushq queue import`, with or without --json.

    The output is one document with queues sorted by name and settings in reference order, so equal queues give equal
    bytes. It leaves out messages, stats and generated fields, and QUEUE.dead and QUEUE.late, which belong to their
    queue. Of replication only mode async is exported: each server decides the number of copies itself.
    """
    if is_all == bool(names):
        raise click.UsageError("choose one: queue names or --all")
    if companions := [name for name in names if owner_of(name) != name]:
        raise click.UsageError(f'"{companions[0]}" belongs to queue "{owner_of(companions[0])}": export that one')
    items = run(ask(target, lambda admin: _found(admin, names, is_all)))
    entries = [{"name": item["name"], "config": _ordered(portable(item["config"]))} for item in items]
    put(json.dumps({"version": VERSION, "queues": entries}, ensure_ascii=False, indent=2))
    tell(f"{counted(len(entries), 'queue')} written")


async def _found(admin: Admin, names: Sequence[str], is_all: bool) -> list[dict[str, Any]]:
    if is_all:
        found = [item async for item in admin.each_queue() if owner_of(item["name"]) == item["name"]]
    else:
        found = [await admin.get_queue(name) for name in dict.fromkeys(names)]
    return sorted(found, key=lambda item: str(item["name"]))


def portable(config: Config) -> Config:
    """A config without its replication, which depends on the place, except for the mode async."""
    rest = {name: value for name, value in config.items() if name != "replication"}
    is_async = config.get("replication", {}).get("mode") == "async"
    return rest | ({"replication": {"mode": "async"}} if is_async else {})


def _ordered(config: Config) -> Config:
    known = {name: config[name] for name in SETTINGS if name in config}
    newer = {name: config[name] for name in sorted(config) if name not in known}
    return {name: _sorted(value) for name, value in (known | newer).items()}


def _sorted(value: Any) -> Any:
    return {name: _sorted(value[name]) for name in sorted(value)} if isinstance(value, dict) else value


# ----------------------------------------------------------------------------------------------------------- import


@command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
@click.option("--update", "is_update", is_flag=True, help="Update existing queues that differ.")
@target_options
@json_option
def import_(file: BinaryIO, dry_run: bool, is_update: bool, target: Target, as_json: bool) -> None:
    """Create the queues of FILE that do not exist yet; `-` reads stdin.

    FILE is the output of `pushq queue export`, or a subset of it: a missing setting gets its default in a new queue and
    is left unchanged in an existing one. Differences in existing queues are reported, and --update applies them. No
    queue is deleted; differences in settings that cannot change, such as kind, are only reported. Importing the same
    file twice changes nothing.

    The whole file is checked before anything changes. Exits with 1 while queues differ from FILE; --dry-run exits as
    the import would.
    """
    entries = read(file)
    plan: list[Planned] = []
    failure = run(ask(target, lambda admin: _import(admin, entries, plan, dry_run, is_update)))
    if as_json:
        put_json({"items": [msgspec.to_builtins(each) for each in plan], "dry_run": dry_run})
    else:
        for each in plan:
            _put(each, dry_run)
    if failure is not None:
        raise failure
    _judge(plan, dry_run, is_update)


def read(file: BinaryIO) -> dict[str, Config]:
    """The configs of a document by queue, each validated. Raises `BadParameter` that says what is wrong, and where."""
    raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise _wrong(f"the file is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(raw, type=Document)
    except msgspec.ValidationError as error:
        raise _wrong(
            f"{error}; expected {{'queues': [{{'name', 'config'}}]}}, as written by `pushq queue export`"
        ) from None
    except msgspec.DecodeError as error:
        raise _wrong(f"not valid JSON: {error}; convert YAML with `yq -o json`") from None
    if document.version != VERSION:
        raise _wrong(f"the file has version {document.version}, but this pushq reads version {VERSION}")
    entries: dict[str, Config] = {}
    for number, entry in enumerate(document.queues):
        if entry.name in entries:
            raise _wrong(f'/queues/{number}: duplicate queue "{entry.name}"')
        try:
            check_new_queue_name(entry.name)
            queue_config(entry.config, entry.name)
        except ServerError as error:
            raise _wrong(f'/queues/{number}: queue "{entry.name}": {error.detail}') from None
        entries[entry.name] = _asked(entry.config)
    return entries


def _asked(config: Config) -> Config:
    """Without the replication that files of an earlier version state for each queue, although it was not asked for."""
    is_said = config.get("replication") == msgspec.to_builtins(ONE_NODE)
    return {name: value for name, value in config.items() if name != "replication" or not is_said}


async def _import(
    admin: Admin, entries: Mapping[str, Config], plan: list[Planned], dry_run: bool, is_update: bool
) -> Failure | None:
    """Fills `plan`, and carries it out. Returns the failure that ended it early."""
    found: dict[str, tuple[Planned, str]] = {}
    for name in sorted(entries):
        planned, etag = await _compare(admin, name, entries[name])
        found[name] = planned, etag
        plan.append(planned)
    if dry_run:
        return None
    missing = [name for name, (planned, _) in found.items() if planned.result == "missing"]
    try:
        with progress("importing queues", len(entries)) as advance:
            await _create(admin, {name: entries[name] for name in missing}, found)
            advance(len(missing))
            for name, (planned, etag) in found.items():
                if is_update and planned.result == "differs":
                    await _update(admin, name, planned, etag)
    except Exception as error:
        if (failure := translate(error)) is None:
            raise
        return failure
    return None


async def _compare(admin: Admin, name: str, given: Config) -> tuple[Planned, str]:
    from push.client import NotFound

    try:
        item, etag = await admin.get_queue_etag(name)
    except NotFound:
        return Planned(name, "missing", {}), ""
    changes = differences(name, given, item["config"])
    if not changes:
        return Planned(name, "same", {}), etag
    return Planned(name, "fixed" if any(setting in FIXED for setting in changes) else "differs", changes), etag


def differences(name: str, given: Config, there: Config) -> dict[str, Config]:
    """The given settings whose value differs in the existing queue: `{setting: {"is", "wanted"}}`."""
    config = queue_config(given, name)
    whole = msgspec.to_builtins(shown_config(config, name, config.replication))
    if "replication" in given:  # fields left out of it are as the queue's place has them
        whole["replication"] = {**(there.get("replication") or {}), **config.replication.asked()}
    return {
        setting: {"is": there.get(setting), "wanted": whole[setting]}
        for setting in SETTINGS
        if setting in given and there.get(setting) != whole[setting]
    }


async def _create(admin: Admin, missing: Mapping[str, Config], found: Mapping[str, tuple[Planned, str]]) -> None:
    """Creates each queue after those it names; if queues name each other, the links are set when all exist."""
    later: list[tuple[str, Config]] = []
    for name in in_order(missing):
        config = missing[name]
        waited_for = {other for other in missing if other != name and found[other][0].result == "missing"}
        early = {link: config[link] for link in LINKS if config.get(link) in waited_for}
        await admin.create_queue(name, {key: value for key, value in config.items() if key not in early})
        found[name][0].result = "created"
        if early:
            later.append((name, early))
    for name, links in later:
        await admin.update_queue(name, links)


def in_order(missing: Mapping[str, Config]) -> list[str]:
    """The names, each after those it links to, as far as that is possible."""
    order: dict[str, None] = {}
    rest = sorted(missing)
    while rest:
        free = [name for name in rest if not any(link in rest and link != name for link in _links(missing[name]))]
        for name in free or rest[:1]:
            order[name] = None
        rest = [name for name in rest if name not in order]
    return list(order)


def _links(config: Config) -> list[str]:
    return [config[link] for link in LINKS if isinstance(config.get(link), str)]


async def _update(admin: Admin, name: str, planned: Planned, etag: str) -> None:
    wanted = {setting: change["wanted"] for setting, change in planned.changes.items()}
    await admin.update_queue(name, wanted, etag=etag)
    planned.result = "updated"


def _put(planned: Planned, dry_run: bool) -> None:
    """Prints a line per queue, and one for each setting that differs."""
    words = {
        "missing": "would be created" if dry_run else "missing",
        "fixed": "differs in settings that cannot change",
    }
    put(f"{planned.name}: {words.get(planned.result, planned.result)}")
    for setting, change in planned.changes.items():
        fixed = " (cannot change)" if setting in FIXED else ""
        put(f"  {setting}: {_shown(change['is'])} → {_shown(change['wanted'])}{fixed}")


def _judge(plan: Sequence[Planned], dry_run: bool, is_update: bool) -> None:
    """Raises `Failure` if a queue differs and is not, or would not be, changed."""
    count = {result: sum(each.result == result for each in plan) for result in ("fixed", "differs")}
    lines = []
    if count["fixed"]:
        lines.append(f"{count['fixed']} differ in settings that cannot change: use another name for them in FILE")
    if count["differs"] and not is_update:
        lines.append(f"{count['differs']} differ and were left unchanged: --update changes them")
    if lines:
        raise Failure("some queues differ from FILE", lines=lines)
    if dry_run:
        tell("nothing changed: --dry-run")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrong(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="FILE")
