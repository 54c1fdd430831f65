"""Alerts by state, their history, the rules that raise them, their receivers, and the silences that mute them."""

from __future__ import annotations

import math
from typing import Any, Final
from urllib.parse import quote

from web_console.limits import ROWS_PER_PAGE
from web_console.tables import Button, Column, Table
from web_console.visit import Visit
from web_console.wording import decimal, duration, number, of_unit

ROWS_MAX: Final = 500
BUCKETS: Final = ("firing", "pending", "silenced", "resolved")


def bucket(alert: dict[str, Any]) -> str:
    """The group in which an alert is shown: a firing alert that is silenced has its own."""
    if alert["state"] == "firing" and alert.get("silenced_by"):
        return "silenced"
    return str(alert["state"])


def what(alert: dict[str, Any]) -> str:
    """What was found, without the rule and the subject, which are shown beside it."""
    return str(alert["detail"]).removeprefix(f"{alert['rule_name']}: {alert['subject']}: ")


async def load(visit: Visit) -> dict[str, Any]:
    answer = await visit.maybe("/v1/alerts", limit=ROWS_MAX)
    every = [{**one, "what": what(one)} for one in answer["items"]] if answer else []
    found = {
        name: [one for one in every if bucket(one) == name] for name in ("firing", "pending", "silenced", "resolved")
    }
    table = _table(visit, "Alerts", ALERTS, every, "No alerts.")
    return {"table": table, "found": found, "is_there": answer is not None}


ALERTS: Final = (
    Column("severity", "Severity", "state"),
    Column("state", "State", "state"),
    Column("rule_name", "Rule"),
    Column("subject", "About"),
    Column("detail", "What"),
    Column("since", "Since", "time"),
)


def _table(
    visit: Visit, caption: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], empty: str, **more: Any
) -> Table:
    return Table(caption, columns, rows, empty, path=visit.path, query=dict(visit.query), total=len(rows), **more)


async def load_history(visit: Visit) -> dict[str, Any]:
    page = await visit.maybe("/v1/alerts/history", limit=ROWS_PER_PAGE, cursor=visit.query.get("cursor"))
    columns = (
        Column("at", "When", "time"),
        Column("state", "Became", "state"),
        Column("severity", "Severity", "state"),
        Column("rule_name", "Rule"),
        Column("subject", "About"),
        Column("detail", "What"),
    )
    items, following = (page["items"], page["next"]) if page else ([], None)
    table = _table(visit, "Alert history, newest first", columns, items, "No alert has fired.", following=following)
    return {"table": table, "about": "All alert changes of the last 30 days."}


async def load_rules(visit: Visit) -> dict[str, Any]:
    rules = await visit.maybe("/v1/alert-rules", limit=ROWS_MAX)
    kinds = _items(await visit.maybe("/v1/alerts/kinds"))
    receivers = _items(await visit.maybe("/v1/alert-receivers", limit=ROWS_MAX))
    names = {one["id"]: one["name"] for one in receivers}
    columns = (
        Column("name", "Rule", link="href"),
        Column("watches", "Watches", "state"),
        Column("kind", "Kind", "state"),
        Column("queue", "Queues"),
        Column("bound", "Limit"),
        Column("lasting_ms", "For", "age"),
        Column("severity", "Severity", "state"),
        Column("told", "Notifies"),
        Column("firing", "Firing", "number"),
        Column("created_by", "By"),
    )
    by_name = {one["kind"]: one for one in kinds}
    rows = [_rule_row(visit, one, names, by_name) for one in _items(rules)]
    table = _table(visit, "Alert rules", columns, rows, "No rules yet. Create one below.", has_buttons=True)
    usable = {one["kind"]: one for one in kinds if visit.role == "admin" or not one.get("needs")}
    chosen, etag = await _chosen(visit, "/v1/alert-rules", _items(rules))
    return {
        "table": table,
        "kinds": list(usable.values()),
        "receivers": receivers,
        "edited": draft(chosen, usable[chosen["kind"]]) if chosen and chosen["kind"] in usable else None,
        "etag": etag,
        "draft": NEW_RULE,
        "is_there": rules is not None,
    }


async def _chosen(visit: Visit, path: str, items: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    """The object to be changed, and its ETag."""
    wanted = visit.query.get("edit")
    if all(item["id"] != wanted for item in items):
        return None, ""
    found = await visit.ask("GET", f"{path}/{wanted}")
    return found.json(), found.headers["etag"]


def _edit(visit: Visit, item: dict[str, Any]) -> str:
    return f"{visit.path}?edit={quote(item['id'])}"


NEW_RULE: Final[dict[str, Any]] = {
    **dict.fromkeys(("id", "name", "kind", "limit", "clear_at", "for_ms", "keep_ms", "window_ms", "note"), ""),
    **dict.fromkeys(("objective", "latency_ms"), ""),
    "queue": "*",
    "severity": "warning",
    "receivers": [],
    "enabled": True,
}
"""The initial values of a new rule's form, as texts. An empty field gets its default."""


def draft(rule: dict[str, Any], kind: dict[str, Any]) -> dict[str, Any]:
    """An existing rule as the values of its form. A `clear_at` at its default stays empty: it follows the limit."""
    filled = NEW_RULE | {name: rule[name] for name in ("id", "name", "kind", "queue", "severity", "note")}
    for name in ("limit", "clear_at", "objective", "latency_ms"):
        if name in kind["fields"] and rule[name] is not None:
            filled[name] = decimal(rule[name])
    side = -1 if kind["direction"] == "above" else 1
    if math.isclose(rule["clear_at"], rule["limit"] + side * abs(rule["limit"]) / 10, abs_tol=1e-9):
        filled["clear_at"] = ""
    filled |= {name: duration(rule[name]) for name in ("for_ms", "keep_ms") if rule[name]}
    if "window_ms" in kind["fields"]:
        filled["window_ms"] = duration(rule["window_ms"])
    return filled | {"receivers": rule["receivers"], "enabled": rule["enabled"]}


def bound(rule: dict[str, Any], kind: dict[str, Any] | None) -> str:
    """`above 1 000 messages`; for an SLO, its objective."""
    if rule["objective"] is not None:
        within = f" within {rule['latency_ms']} ms" if rule["latency_ms"] is not None else ""
        return f"{decimal(rule['objective'])} % good{within}"
    side, unit = (kind["direction"], of_unit(kind["unit"], rule["limit"])) if kind else ("", "")
    return f"{side} {number(rule['limit'])} {unit}".strip()


def _rule_row(
    visit: Visit, rule: dict[str, Any], receivers: dict[str, str], kinds: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    name = rule["name"]
    test = Button(
        "test-rule", "Test", {"item": rule["id"]}, f"Sends whom {name!r} tells a message that says it is a test."
    )
    if rule["enabled"]:
        question = f"Stops {name!r}; its alerts end, and nobody is told of new ones until it is enabled."
        switch = Button("switch-rule", "Disable", {"item": rule["id"], "wanted": "off"}, question)
    else:
        switch = Button("switch-rule", "Enable", {"item": rule["id"], "wanted": "on"}, f"Lets {name!r} watch again.")
    question = f"Deletes the rule {name!r}; its alerts end. This cannot be undone."
    delete = Button("delete-rule", "Delete", {"item": rule["id"]}, question, is_danger=True)
    return {
        **rule,
        "href": _edit(visit, rule),
        "bound": bound(rule, kinds.get(rule["kind"])),
        "lasting_ms": rule["for_ms"] or None,
        "watches": "yes" if rule["enabled"] else "no",
        "told": ", ".join(receivers.get(one, one) for one in rule["receivers"]) or "nobody",
        "firing": rule["state"]["firing"],
        "buttons": [*([test] if rule["receivers"] else []), switch, delete],
    }


async def load_receivers(visit: Visit) -> dict[str, Any]:
    receivers = await visit.maybe("/v1/alert-receivers", limit=ROWS_MAX)
    rules = _items(await visit.maybe("/v1/alert-rules", limit=ROWS_MAX))
    columns = (
        Column("name", "Receiver", link="href"),
        Column("type", "Type", "state"),
        Column("url", "Address", "code"),
        Column("rules", "Used by"),
        Column("delivered", "Delivered", "number"),
        Column("failed", "Failed", "number"),
        Column("last_at", "Last", "time"),
        Column("last_error", "Last error"),
    )
    rows = [_receiver_row(visit, one, rules) for one in _items(receivers)]
    empty = "No receivers, so nobody is notified of alerts. Create one below and select it in a rule."
    table = _table(visit, "Alert receivers", columns, rows, empty, has_buttons=True)
    edited, etag = await _chosen(visit, "/v1/alert-receivers", rows)
    return {"table": table, "is_there": receivers is not None, "edited": edited, "etag": etag}


def _receiver_row(visit: Visit, receiver: dict[str, Any], rules: list[dict[str, Any]]) -> dict[str, Any]:
    name, fields = receiver["name"], {"item": receiver["id"]}
    told_by = [rule["name"] for rule in rules if receiver["id"] in rule["receivers"]]
    test = Button(
        "test-receiver", "Test", {**fields, "name": name}, f"Sends {name!r} a message that says it is a test."
    )
    question = f"Deletes the receiver {name!r} and its secret. This cannot be undone."
    delete = Button("delete-receiver", "Delete", fields, question, is_danger=True)
    buttons = [test, *([] if told_by else [delete])]  # the server refuses to delete a receiver that a rule names
    return {**receiver, "href": _edit(visit, receiver), "rules": ", ".join(told_by) or None, "buttons": buttons}


def _items(answer: Any) -> list[dict[str, Any]]:
    return answer["items"] if answer else []


async def load_silences(visit: Visit) -> dict[str, Any]:
    answer = await visit.maybe("/v1/silences", limit=ROWS_MAX)
    rules = await visit.maybe("/v1/alert-rules", limit=ROWS_MAX)
    names = {one["id"]: one["name"] for one in _items(rules)}
    rows = [_silence_row(one, names) for one in _items(answer)]
    columns = (
        Column("state", "State", "state"),
        Column("reason", "Reason"),
        Column("author", "By"),
        Column("queue", "Queues", "code"),
        Column("rule_name", "Rule"),
        Column("mutes", "Muting now", "number"),
        Column("starts_at", "From", "time"),
        Column("ends_at", "Until", "time"),
    )
    table = _table(visit, "Silences", columns, rows, "No silences.", has_buttons=True)
    return {"table": table, "rules": _items(rules), "is_there": answer is not None, "wanted": dict(visit.query)}


def _silence_row(silence: dict[str, Any], rules: dict[str, str]) -> dict[str, Any]:
    buttons = [_end_silence(silence)] if silence["state"] != "expired" else []
    return {**silence, "rule_name": rules.get(silence["rule"], silence["rule"]), "buttons": buttons}


def _end_silence(silence: dict[str, Any]) -> Button:
    question = (
        "Ends this silence now. Alerts that fire or resolve from then on are notified; alerts already firing are not "
        "notified again."
    )
    return Button("end-silence", "End now", {"item": silence["id"]}, question)
