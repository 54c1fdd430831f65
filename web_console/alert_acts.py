"""What forms about alerts do: rules, and silences."""

from __future__ import annotations

from typing import Any

from web_console.forms import Done, Form, given, number, whole
from web_console.visit import Visit
from web_console.wording import counted


async def make_rule(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = given(form, "name", "kind", "queue", "severity", "note")
    for field in ("limit", "clear_at", "objective", "latency_ms"):
        if (value := number(form, field)) is not None:
            body[field] = value
    for field in ("for_ms", "window_ms"):
        if (ms := whole(form, field)) is not None:
            body[field] = ms
    await visit.ask("POST", "/v1/alert-rules", body)
    return Done(f"Rule {body.get('name', '')} watches from now on")


async def delete_rule(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/alert-rules/{form.get('item', '')}")
    return Done("The rule was deleted")


async def silence(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = given(form, "rule", "queue", "severity", "reason")
    body["duration_ms"] = (whole(form, "minutes") or 60) * 60_000
    if form.get("how") == "preview":
        told = (await visit.ask("POST", "/v1/silences/preview", body)).json()
        return Done(
            f"It would mute {counted(told['mutes'], 'alert that fires', 'alerts that fire')} now; nothing was silenced"
        )
    made = (await visit.ask("POST", "/v1/silences", body)).json()
    return Done(f"Silenced until {made['ends_at']}; it mutes {counted(made['mutes'], 'alert')} now")


async def end_silence(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/silences/{form.get('item', '')}")
    return Done("The silence has ended")
