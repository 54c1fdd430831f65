"""`pushq alert import`: rules of alerts from one JSON document, such as the job `anomalies` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import command, json_option, run
from gateway.commands.exits import Failure
from gateway.commands.output import put, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin

VERSION = 1
FILE_BYTES_MAX = 4 * 1024 * 1024
RULES_MAX = 1_000
REFUSED = (400, 404, 422)
"""The statuses with which the server refuses a wrong rule."""

Rule = dict[str, Any]


class Document(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule]
    version: int = VERSION


class Planned(msgspec.Struct):
    """The plan for one rule. `result`: missing, same or differs; afterwards created or updated."""

    name: str
    result: str
    id: str | None
    changes: dict[str, dict[str, Any]]
    """`{field: {"is", "wanted"}}` of an existing rule."""


@command("import")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--receiver", "receivers", multiple=True, metavar="ID", help="Receiver to notify, for every rule. Repeatable."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
@click.option("--update", "is_update", is_flag=True, help="Update existing rules that differ.")
@target_options
@json_option
def import_(
    file: BinaryIO, receivers: tuple[str, ...], dry_run: bool, is_update: bool, target: Target, as_json: bool
) -> None:
    """Create the alert rules of FILE that do not exist yet; `-` reads stdin.

    FILE is what the job anomalies writes for a tenant into alert_rules, or a file in the same format: a rule has the
    fields of POST /v1/alert-rules and is identified by its name. Differences in existing rules are reported, and
    --update applies them. No rule is deleted. Importing the same file twice changes nothing.

    The server checks the whole file before it changes anything.
    """
    rules = [rule | ({"receivers": list(receivers)} if receivers else {}) for rule in read(file)]
    plan: list[Planned] = run(ask(target, lambda admin: _import(admin, rules, dry_run, is_update)))
    if as_json:
        put_json({"items": [msgspec.to_builtins(each) for each in plan], "dry_run": dry_run})
    else:
        for each in plan:
            _put(each, dry_run)
    if (left := sum(each.result == "differs" for each in plan)) and not is_update:
        tell(f"{counted(left, 'rule differs', 'rules differ')} and {'was' if left == 1 else 'were'} left unchanged")
        raise Failure("some rules differ from FILE: --update changes them")
    tell("nothing changed: --dry-run" if dry_run else f"{counted(len(plan), 'rule')} match FILE")


def read(file: BinaryIO) -> list[Rule]:
    """The rules of a document, each with a unique name. Raises `BadParameter` that says what is wrong, and where."""
    raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise _wrong(f"the file is larger than {FILE_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(raw, type=Document)
    except msgspec.ValidationError as error:
        raise _wrong(f"{error}; expected {{'version': 1, 'rules': [{{'name', 'kind', …}}]}}") from None
    except msgspec.DecodeError as error:
        raise _wrong(f"not valid JSON: {error}") from None
    if document.version != VERSION:
        raise _wrong(f"the file has version {document.version}, but this pushq reads version {VERSION}")
    if len(document.rules) > RULES_MAX:
        raise _wrong(f"the file has {len(document.rules)} rules; the maximum is {RULES_MAX}")
    names: set[str] = set()
    for number, rule in enumerate(document.rules):
        name = rule.get("name")
        if not isinstance(name, str):
            raise _wrong(f"/rules/{number}/name: name is required")
        if name in names:
            raise _wrong(f'/rules/{number}/name: duplicate rule "{name}"')
        names.add(name)
    return document.rules


async def _import(admin: Admin, rules: Sequence[Rule], dry_run: bool, is_update: bool) -> list[Planned]:
    def page(cursor: str | None) -> Any:
        return admin.ask("GET", "/v1/alert-rules", params={"cursor": cursor} if cursor else {})

    there: dict[str, list[Rule]] = {}
    for rule in await all_pages(page):
        there.setdefault(rule["name"], []).append(rule)
    plan = [compared(rule, there.get(rule["name"], [])) for rule in rules]
    for number, (rule, planned) in enumerate(zip(rules, plan, strict=True)):
        if planned.result != "same":
            await _checked(admin, number, rule)
        if planned.result == "differs" and is_update:
            (known,) = (one for one in there[rule["name"]] if one["id"] == planned.id)
            await _checked(admin, number, whole_of(rule, known))
    if dry_run:
        return plan
    for rule, planned in zip(rules, plan, strict=True):
        if planned.result == "missing":
            planned.id = (await admin.ask("POST", "/v1/alert-rules", json=rule))["id"]
            planned.result = "created"
        elif planned.result == "differs" and is_update:
            await _update(admin, planned, rule)
    return plan


def compared(rule: Rule, there: Sequence[Rule]) -> Planned:
    """Compares a rule of FILE with those of its name: an equal one, else the one with the fewest differences."""
    if not there:
        return Planned(rule["name"], "missing", None, {})
    found = [(differences(rule, one), str(one["id"])) for one in there]
    changes, known = min(found, key=lambda one: len(one[0]))
    return Planned(rule["name"], "differs" if changes else "same", known, changes)


def differences(rule: Rule, there: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given fields whose value differs in the existing rule."""
    return {
        field: {"is": there.get(field), "wanted": value} for field, value in rule.items() if there.get(field) != value
    }


async def _checked(admin: Admin, number: int, rule: Rule) -> None:
    from push.client.errors import ApiError

    try:
        await admin.ask("POST", "/v1/alert-rules/preview", json=rule)
    except ApiError as error:
        if error.status not in REFUSED:
            raise
        more = "".join(f"; {one.pointer}: {one.detail}" for one in error.problem.errors if one.detail != error.detail)
        raise _wrong(f'/rules/{number}: rule "{rule["name"]}": {error.detail}{more}') from None


async def _update(admin: Admin, planned: Planned, rule: Rule) -> None:
    """Replaces a rule; fields not given keep their values. A concurrent change wins: If-Match refuses this one."""
    path = f"/v1/alert-rules/{planned.id}"
    answer = await admin.request("GET", path)
    known = msgspec.json.decode(answer.content)
    await admin.ask("PUT", path, json=whole_of(rule, known), headers={"If-Match": answer.headers["etag"]})
    planned.result = "updated"


def whole_of(rule: Rule, known: Mapping[str, Any]) -> Rule:
    """The complete new rule: the given fields, and those of the existing rule that still apply."""
    kept = FIELDS if rule["kind"] == known["kind"] else FIELDS - FIELDS_OF_KINDS
    whole = {field: known[field] for field in known if field in kept and known[field] is not None} | rule
    is_slo = str(whole["kind"]).startswith("slo_")
    for field in ("limit", "clear_at"):
        if field not in rule and (is_slo or (field == "clear_at" and "limit" in rule)):
            whole.pop(field, None)  # an SLO has neither, and a new limit implies another clear_at
    return whole


FIELDS_OF_KINDS = frozenset(("limit", "clear_at", "window_ms", "objective", "latency_ms"))
"""Fields with another meaning, or none, in a rule of another kind."""
FIELDS = FIELDS_OF_KINDS | {"name", "kind", "queue", "for_ms", "keep_ms", "severity", "receivers", "enabled", "note"}
"""The fields of a rule in requests."""


def _put(planned: Planned, dry_run: bool) -> None:
    """Prints a line per rule, and one for each field that differs."""
    put(f"{planned.name}: {'would be made' if dry_run and planned.result == 'missing' else planned.result}")
    for field, change in planned.changes.items():
        put(f"  {field}: {_shown(change['is'])} → {_shown(change['wanted'])}")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _wrong(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="FILE")
