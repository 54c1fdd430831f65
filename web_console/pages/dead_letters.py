"""Dead letters of a queue: grouped by reason, moved back as an operation whose progress is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from web_console.limits import ROWS_PER_PAGE
from web_console.pages.messages import message_row
from web_console.tables import Column, Table
from web_console.visit import Visit, queue_path

LETTERS_LOOKED_AT_MAX: Final = 1000


async def load(visit: Visit) -> dict[str, Any]:
    name = visit.params[0]
    path = queue_path(name, "messages")
    letters = await visit.every(path, LETTERS_LOOKED_AT_MAX, state="dead")
    page = await visit.get(path, state="dead", limit=ROWS_PER_PAGE, cursor=visit.query.get("cursor"))
    jobs = await visit.maybe(queue_path(name, "redrives"), limit=100)
    groups = Counter(_reason(letter) for letter in letters)
    rows = [{**message_row(name, "dead", letter), **ended(letter)} for letter in page["items"]]
    table = Table(
        f"Dead letters of {name}",
        (
            Column("id", "Id", "code", link="href"),
            Column("reason", "Reason", "state"),
            Column("at", "Since", "time"),
            Column("attempts", "Attempts", "number"),
            Column("said", "Last attempt"),
            Column("body", "Body", "code"),
        ),
        rows,
        "No dead letters.",
        path=visit.path,
        query=dict(visit.query),
        total=len(rows),
        following=page["next"],
    )
    return {
        "title": f"Dead letters of {name}",
        "name": name,
        "groups": groups.most_common(),
        "looked_at": len(letters),
        "is_all": len(letters) < LETTERS_LOOKED_AT_MAX,
        "jobs": list(reversed(jobs["items"])) if jobs else [],
        "table": table,
    }


def ended(letter: dict[str, Any]) -> dict[str, Any]:
    end = letter.get("dead_letter") or {}
    last = (end.get("history") or [{}])[-1]
    said = ": ".join(filter(None, ((last.get("outcome") or "").replace("_", " "), last.get("reason"))))
    return {"reason": end.get("reason"), "at": end.get("at"), "attempts": end.get("attempts"), "said": said or None}


def _reason(letter: dict[str, Any]) -> str:
    return str((letter.get("dead_letter") or {}).get("reason", "unknown"))
