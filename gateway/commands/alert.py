"""`pushq alert …`: open alerts, rules, silences and receivers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from gateway.commands.asking import all_pages, ask, named
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.figures import Figure, FigureRange
from gateway.commands.moments import DURATION
from gateway.commands.output import (
    confirm,
    put,
    put_fields,
    put_items,
    put_json,
    put_table,
    require_stdout,
    shown_once,
    tell,
)
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Admin


def _all(target: Target, path: str, **query: Any) -> list[dict[str, Any]]:
    params = {name: value for name, value in query.items() if value is not None}

    def page(admin: Any) -> Any:
        return lambda cursor: admin.ask("GET", path, params={**params, **({"cursor": cursor} if cursor else {})})

    found: list[dict[str, Any]] = run(ask(target, lambda admin: all_pages(page(admin))))
    return found


def _ask(
    target: Target,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`names`: see `asking.named`."""

    async def question(admin: Admin) -> dict[str, Any]:
        async with named(admin, names or {}):
            return await admin.ask(method, path, json=body)

    found: dict[str, Any] = run(ask(target, question))
    return found


def _rule(rule: str) -> str:
    return f"/v1/alert-rules/{quote(rule, safe='')}"


def _show(items: list[dict[str, Any]], fields: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        put_items(items)
    else:
        header = [field.replace("_", " ") for field in fields]
        put_table(header, [[_shown(item[field]) for field in fields] for item in items])


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else value


@group("alert", lazy={"import": "gateway.commands.alert_file:import_"})
def alert() -> None:
    """Show alerts and manage alert rules, silences and receivers."""


@alert.command("list")
@click.option("--state", type=click.Choice(["pending", "firing", "resolved"]), help="Show only alerts in this state.")
@target_options
@json_option
def list_alerts(state: str | None, target: Target, as_json: bool) -> None:
    """Show current alerts, most severe first."""
    fields = ("state", "severity", "rule_name", "subject", "value", "limit", "since", "silenced_by")
    _show(_all(target, "/v1/alerts", state=state), fields, as_json=as_json)


@alert.command("history")
@target_options
@json_option
def history(target: Target, as_json: bool) -> None:
    """Show when alerts started and ended, newest first."""
    fields = ("at", "state", "severity", "rule_name", "subject", "value", "limit")
    _show(_all(target, "/v1/alerts/history"), fields, as_json=as_json)


@alert.command("rules")
@target_options
@json_option
def rules(target: Target, as_json: bool) -> None:
    """Show alert rules."""
    fields = ("id", "name", "kind", "queue", "limit", "for_ms", "severity", "enabled")
    _show(_all(target, "/v1/alert-rules"), fields, as_json=as_json)


@alert.command("add")
@click.argument("name", metavar="NAME")
@click.option("--kind", required=True, metavar="KIND", help="The metric to watch; see `pushq alert kinds`.")
@click.option("--queue", metavar="PATTERN", help="Queues the rule applies to.  [default: *]")
@click.option("--limit", type=Figure(), help="Fire when the value crosses this limit.")
@click.option("--clear-at", type=Figure(), help="Resolve at this value.  [default: 10 % on the good side of the limit]")
@click.option(
    "--for",
    "--for-ms",
    "for_ms",
    type=DURATION,
    default=0,
    show_default=True,
    help="How long the value must stay past the limit before the alert fires.",
)
@click.option(
    "--keep",
    "--keep-ms",
    "keep_ms",
    type=DURATION,
    default=0,
    show_default=True,
    help="How long the value must stay back to normal before the alert resolves.",
)
@click.option(
    "--window", "--window-ms", "window_ms", type=DURATION, help="The period over which growth and rates are measured."
)
@click.option("--severity", type=click.Choice(["info", "warning", "critical"]), default="warning", show_default=True)
@click.option("--receiver", "receivers", multiple=True, metavar="ID", help="Receiver to notify. Repeatable.")
@click.option("--objective", type=Figure(), help="The SLO target, in percent.")
@click.option("--latency", "--latency-ms", "latency_ms", type=DURATION, help="Of slo_latency.")
@click.option("--preview", is_flag=True, help="Show what the rule would match now, without creating it.")
@target_options
@json_option
def add(name: str, receivers: tuple[str, ...], preview: bool, target: Target, as_json: bool, **given: Any) -> None:
    """Create an alert rule, or try one out."""
    body = {"name": name, "receivers": list(receivers), **{key: v for key, v in given.items() if v is not None}}
    named_there = {f"/receivers/{n}": f"/v1/alert-receivers/{quote(id, safe='')}" for n, id in enumerate(receivers)}
    path = "/v1/alert-rules/preview" if preview else "/v1/alert-rules"
    found = _ask(target, "POST", path, body, names=named_there)
    if as_json:
        put_json(found)
    elif preview:
        put_table(("subject", "value", "would"), [[i["subject"], i["value"], i["would"]] for i in found["items"]])
        tell(f"{found['firing']} of {found['matched']} would fire")
    else:
        put(found["id"])


@alert.command("remove")
@click.argument("rule", metavar="RULE")
@yes_option
@target_options
@json_option
def remove(rule: str, is_sure: bool, target: Target, as_json: bool) -> None:
    """Delete an alert rule and its alerts."""
    confirm(f"Delete alert rule {rule} and its alerts?", is_sure=is_sure)
    run(ask(target, lambda admin: admin.request("DELETE", _rule(rule))))
    if as_json:
        put_json({"id": rule, "deleted": True})
    else:
        tell(f"deleted alert rule {rule} and its alerts")


@alert.command("test")
@click.argument("rule", metavar="RULE")
@target_options
@json_option
def test(rule: str, target: Target, as_json: bool) -> None:
    """Send a test notification to a rule's receivers."""
    found = _ask(target, "POST", f"{_rule(rule)}/test")
    _show(found["items"], ("receiver", "ok", "status", "error", "ms"), as_json=as_json)


@alert.command("kinds")
@target_options
@json_option
def kinds(target: Target, as_json: bool) -> None:
    """Show the metrics that rules can watch."""
    _show(_all(target, "/v1/alerts/kinds"), ("kind", "about", "direction", "unit", "meaning"), as_json=as_json)


@alert.command("silence")
@click.option("--queue", metavar="PATTERN", help="Silence alerts for these queues.")
@click.option("--rule", metavar="RULE", help="Silence alerts from this rule.")
@click.option("--for", "for_ms", type=DURATION, help="How long the silence lasts: 90s, 15m, 2h, 7d.")
@click.option("--minutes", type=FigureRange(min=0, min_open=True), help="The duration in minutes.")
@click.option("--reason", required=True, help="The reason, shown to everyone.")
@target_options
@json_option
def silence(
    queue: str | None,
    rule: str | None,
    for_ms: int | None,
    minutes: float | None,
    reason: str,
    target: Target,
    as_json: bool,
) -> None:
    """Silence alerts for a while."""
    if queue is None and rule is None:
        raise click.UsageError('say what to silence: --queue PATTERN ("*" for all) or --rule RULE')
    if (for_ms is None) == (minutes is None):
        raise click.UsageError("give a duration, either with --for, such as --for 2h, or with --minutes")
    duration_ms = round(minutes * 60_000) if minutes is not None else for_ms
    given = {name: value for name, value in (("queue", queue), ("rule", rule)) if value is not None}
    body = {**given, "duration_ms": duration_ms, "reason": reason}
    found = _ask(target, "POST", "/v1/silences", body, names={} if rule is None else {"/rule": _rule(rule)})
    if as_json:
        put_json(found)
    else:
        put(found["id"])
        tell(f"{counted(found['mutes'], 'alert is', 'alerts are')} silenced until {found['ends_at']}")


@alert.command("silences")
@target_options
@json_option
def silences(target: Target, as_json: bool) -> None:
    """Show silences, including expired ones."""
    _show(
        _all(target, "/v1/silences"),
        ("id", "state", "queue", "rule", "author", "reason", "ends_at", "mutes"),
        as_json=as_json,
    )


@alert.command("unsilence")
@click.argument("silence", metavar="SILENCE")
@target_options
@json_option
def unsilence(silence: str, target: Target, as_json: bool) -> None:
    """End a silence now."""
    run(ask(target, lambda admin: admin.request("DELETE", f"/v1/silences/{quote(silence, safe='')}")))
    if as_json:
        put_json({"id": silence, "deleted": True})
    else:
        tell(f"silence {silence} has ended")


@alert.command("receivers")
@target_options
@json_option
def receivers(target: Target, as_json: bool) -> None:
    """Show receivers and their delivery status."""
    fields = ("id", "name", "type", "url", "delivered", "failed", "last_error")
    _show(_all(target, "/v1/alert-receivers"), fields, as_json=as_json)


@alert.command("add-receiver")
@click.argument("name", metavar="NAME")
@click.option("--webhook", metavar="URL", help="The webhook URL; without it, alerts go to the server log.")
@target_options
@json_option
def add_receiver(name: str, webhook: str | None, target: Target, as_json: bool) -> None:
    """Create a receiver. Its webhook signing secret is shown only once."""
    body = {"name": name, "type": "webhook", "url": webhook} if webhook else {"name": name, "type": "log"}
    require_stdout()
    found = _ask(target, "POST", "/v1/alert-receivers", body)
    shown = {"id": found["id"], **({"secret": found["secret"]} if found["secret"] else {})}
    hint = f"delete it with DELETE /v1/alert-receivers/{found['id']} or in the console, and create another one"
    with shown_once(f"receiver {found['id']} was created", hint) if found["secret"] else nullcontext():
        if as_json:
            put_json(found)
        else:
            put_fields(shown)


@alert.command("export")
@click.option("--prometheus", is_flag=True, required=True, help="Export as a Prometheus rules file.")
@target_options
def export(prometheus: bool, target: Target) -> None:
    """Export the rules to stdout, for another system."""
    found = run(ask(target, lambda admin: admin.request("GET", "/v1/alert-rules/prometheus")))
    put(found.text.rstrip("\n"))
