"""Alerts by state, their history, the rules that raise them and the silences that mute them."""

from __future__ import annotations

from typing import Any, Final

from web_console.limits import ROWS_PER_PAGE
from web_console.tables import Button, Column, Table
from web_console.visit import Visit

ROWS_MAX: Final = 500
BUCKETS: Final = ("firing", "pending", "silenced", "resolved")


def bucket(alert: dict[str, Any]) -> str:
    """A firing alert that somebody silenced stands apart."""
    if alert["state"] == "firing" and alert.get("silenced_by"):
        return "silenced"
    return str(alert["state"])


async def load(visit: Visit) -> dict[str, Any]:
    answer = await visit.maybe("/v1/alerts", limit=ROWS_MAX)
    every = answer["items"] if answer else []
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
    table = _table(visit, "Alert history, the newest first", columns, items, "Nothing has fired.", following=following)
    return {"table": table, "about": "Every change of an alert, kept for 30 days."}


async def load_rules(visit: Visit) -> dict[str, Any]:
    answer = await visit.maybe("/v1/alert-rules", limit=ROWS_MAX)
    kinds = await visit.maybe("/v1/alerts/kinds")
    rows = [{**one, "firing": one["state"]["firing"], "buttons": [_delete_rule(one)]} for one in _items(answer)]
    columns = (
        Column("name", "Rule"),
        Column("kind", "Kind", "state"),
        Column("queue", "Queues", "code"),
        Column("limit", "Limit", "number"),
        Column("for_ms", "For", "age"),
        Column("severity", "Severity", "state"),
        Column("firing", "Firing", "number"),
        Column("created_by", "By"),
    )
    table = _table(visit, "Alert rules", columns, rows, "No rules yet: make one below.", has_buttons=True)
    is_admin = visit.role == "admin"
    usable = [one for one in _items(kinds) if is_admin or not one.get("needs")]
    return {"table": table, "kinds": usable, "is_there": answer is not None}


def _items(answer: Any) -> list[dict[str, Any]]:
    return answer["items"] if answer else []


def _delete_rule(rule: dict[str, Any]) -> Button:
    question = f"Deletes the rule {rule['name']!r}; its alerts end. This cannot be undone."
    return Button("delete-rule", "Delete", {"item": rule["id"]}, question, is_danger=True)


async def load_silences(visit: Visit) -> dict[str, Any]:
    answer = await visit.maybe("/v1/silences", limit=ROWS_MAX)
    rules = await visit.maybe("/v1/alert-rules", limit=ROWS_MAX)
    rows = [{**one, "buttons": [_end_silence(one)] if one["state"] != "expired" else []} for one in _items(answer)]
    columns = (
        Column("state", "State", "state"),
        Column("reason", "Reason"),
        Column("author", "By"),
        Column("queue", "Queues", "code"),
        Column("rule", "Rule", "code"),
        Column("mutes", "Mutes now", "number"),
        Column("starts_at", "From", "time"),
        Column("ends_at", "Until", "time"),
    )
    table = _table(visit, "Silences", columns, rows, "No silences.", has_buttons=True)
    return {"table": table, "rules": _items(rules), "is_there": answer is not None, "wanted": dict(visit.query)}


def _end_silence(silence: dict[str, Any]) -> Button:
    question = "Ends this silence now. What begins or ends from then on is told; what fires already is not told anew."
    return Button("end-silence", "End now", {"item": silence["id"]}, question)
