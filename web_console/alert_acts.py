"""Forms about alerts: rules, receivers and silences."""

from __future__ import annotations

from typing import Any, Final

from web_console.forms import Done, Form, duration, given, number, version, whole
from web_console.pages.alerts import ROWS_MAX
from web_console.visit import Visit
from web_console.wording import counted, write

RULES: Final = "/console/alerts/rules"
RECEIVERS: Final = "/console/alerts/receivers"
_COMMON: Final = ("name", "kind", "for_ms", "keep_ms", "severity", "receivers", "enabled", "note")
"""Fields of a rule of any kind."""


async def make_rule(visit: Visit, form: Form) -> Done:
    body = _rule(form)
    await visit.ask("POST", "/v1/alert-rules", body)
    return Done(f"Rule {body.get('name', '')} created; {_watches(body)}")


async def change_rule(visit: Visit, form: Form) -> Done:
    body = _rule(form)
    await visit.ask("PUT", f"/v1/alert-rules/{form.get('item', '')}", body, headers=version(form))
    return Done(f"Rule {body.get('name', '')} updated; {_watches(body)}", RULES)


def _watches(body: dict[str, Any]) -> str:
    if not body["enabled"]:
        return "disabled until you enable it"
    told = counted(len(body["receivers"]), "receiver") if body["receivers"] else "nobody"
    return f"enabled, notifies {told}"


def _rule(form: Form) -> dict[str, Any]:
    """The rule's fields. An empty one is left out, and gets its default."""
    body: dict[str, Any] = given(form, "name", "kind", "queue", "severity", "note")
    for field in ("limit", "clear_at", "objective"):
        if (value := number(form, field)) is not None:
            body[field] = value
    for field in ("for_ms", "keep_ms", "window_ms"):
        if (ms := duration(form, field)) is not None:
            body[field] = ms
    if (latency_ms := whole(form, "latency_ms")) is not None:
        body["latency_ms"] = latency_ms
    body["receivers"] = [field.removeprefix("receiver.") for field in form if field.startswith("receiver.")]
    body["enabled"] = "enabled" in form
    return body


async def switch_rule(visit: Visit, form: Form) -> Done:
    """Enables or disables a rule and changes nothing else."""
    path = f"/v1/alert-rules/{form.get('item', '')}"
    found, kinds = await visit.ask("GET", path), await visit.get("/v1/alerts/kinds")
    rule = found.json()
    takes = next(kind["fields"] for kind in kinds["items"] if kind["kind"] == rule["kind"])
    body = {name: rule[name] for name in (*_COMMON, *takes)} | {"enabled": form.get("wanted") == "on"}
    await visit.ask("PUT", path, body, headers={"if-match": found.headers["etag"]})
    return Done(f"Rule {rule['name']}: {_watches(body)}")


async def test_rule(visit: Visit, form: Form) -> Done:
    told = (await visit.ask("POST", f"/v1/alert-rules/{form.get('item', '')}/test")).json()["items"]
    if not told:
        return Done("No test sent: the rule has no receivers", is_bad=True)
    names = {one["id"]: one["name"] for one in (await visit.get("/v1/alert-receivers", limit=ROWS_MAX))["items"]}
    said = "; ".join(f"{names.get(one['receiver'], one['receiver'])} {_outcome(one)}" for one in told)
    return Done(f"Sent a test: {said}", is_bad=not all(one["ok"] for one in told))


async def delete_rule(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/alert-rules/{form.get('item', '')}")
    return Done("The rule was deleted")


# --------------------------------------------------------------------------------------------------- receivers


async def make_receiver(visit: Visit, form: Form) -> Done:
    made = (await visit.ask("POST", "/v1/alert-receivers", given(form, "name", "type", "url"))).json()
    if made["secret"] is None:
        return Done(f"Receiver {made['name']} created; you can use it in rules")
    notice = f"Signing secret for webhooks to {made['name']}"
    return Done(notice, secret=made["secret"], afterwards="never shows it again")


async def change_receiver(visit: Visit, form: Form) -> Done:
    path, body = f"/v1/alert-receivers/{form.get('item', '')}", given(form, "name", "type", "url")
    await visit.ask("PUT", path, body, headers=version(form))
    return Done(f"Receiver {form.get('name', '')} updated; the secret is unchanged", RECEIVERS)


async def test_receiver(visit: Visit, form: Form) -> Done:
    outcome = (await visit.ask("POST", f"/v1/alert-receivers/{form.get('item', '')}/test")).json()
    return Done(f"Sent a test: {form.get('name', '')} {_outcome(outcome)}", is_bad=not outcome["ok"])


def _outcome(one: dict[str, Any]) -> str:
    """The outcome of a test: `accepted it (200, 12 ms)`."""
    facts = [] if one["status"] is None else [str(one["status"])]
    facts += [f"{one['ms']} ms"] if one["ok"] else [one["error"]] if one["error"] else []
    return f"{'accepted it' if one['ok'] else 'rejected it'} ({', '.join(facts)})"


async def delete_receiver(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/alert-receivers/{form.get('item', '')}")
    return Done("The receiver was deleted")


# ---------------------------------------------------------------------------------------------------- silences


async def silence(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = given(form, "rule", "queue", "severity", "reason")
    minutes = whole(form, "minutes")
    body["duration_ms"] = (60 if minutes is None else minutes) * 60_000
    if form.get("how") == "preview":
        told = (await visit.ask("POST", "/v1/silences/preview", body)).json()
        return Done(f"It would mute {counted(told['mutes'], 'firing alert')} now; nothing was silenced")
    made = (await visit.ask("POST", "/v1/silences", body)).json()
    return Done(f"Silenced until {write('moment', made['ends_at'])}; it mutes {counted(made['mutes'], 'alert')} now")


async def end_silence(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/silences/{form.get('item', '')}")
    return Done("Silence ended")
