"""`pushq alert …`: open alerts, rules, silences and receivers."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.figures import Figure, FigureRange
from gateway.commands.moments import DURATION
from gateway.commands.output import confirm, put, put_fields, put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted


def _all(target: Target, path: str, **query: Any) -> list[dict[str, Any]]:
    params = {name: value for name, value in query.items() if value is not None}

    def page(admin: Any) -> Any:
        return lambda cursor: admin.ask("GET", path, params={**params, **({"cursor": cursor} if cursor else {})})

    found: list[dict[str, Any]] = run(ask(target, lambda admin: all_pages(page(admin))))
    return found


def _ask(target: Target, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = run(ask(target, lambda admin: admin.ask(method, path, json=body)))
    return found


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
    """Show alerts; manage their rules, silences and receivers."""


@alert.command("list")
@click.option("--state", type=click.Choice(["pending", "firing", "resolved"]), help="Only those.")
@target_options
@json_option
def list_alerts(state: str | None, target: Target, as_json: bool) -> None:
    """Show the alerts of now, the worst first."""
    fields = ("state", "severity", "rule_name", "subject", "value", "limit", "since", "silenced_by")
    _show(_all(target, "/v1/alerts", state=state), fields, as_json=as_json)


@alert.command("history")
@target_options
@json_option
def history(target: Target, as_json: bool) -> None:
    """Show when alerts began and ended, the newest first."""
    fields = ("at", "state", "severity", "rule_name", "subject", "value", "limit")
    _show(_all(target, "/v1/alerts/history"), fields, as_json=as_json)


@alert.command("rules")
@target_options
@json_option
def rules(target: Target, as_json: bool) -> None:
    """Show the alert rules."""
    fields = ("id", "name", "kind", "queue", "limit", "for_ms", "severity", "enabled")
    _show(_all(target, "/v1/alert-rules"), fields, as_json=as_json)


@alert.command("add")
@click.argument("name", metavar="NAME")
@click.option("--kind", required=True, metavar="KIND", help="What it looks at; `pushq alert kinds` lists them.")
@click.option("--queue", metavar="PATTERN", help="The queues it is about.  [default: *]")
@click.option("--limit", type=Figure(), help="Past it the alert fires.")
@click.option("--clear-at", type=Figure(), help="Where it is over.  [default: 10 % on the good side]")
@click.option(
    "--for",
    "--for-ms",
    "for_ms",
    type=DURATION,
    default=0,
    show_default=True,
    help="How long the limit must be passed.",
)
@click.option(
    "--keep",
    "--keep-ms",
    "keep_ms",
    type=DURATION,
    default=0,
    show_default=True,
    help="How long it must be well again.",
)
@click.option("--window", "--window-ms", "window_ms", type=DURATION, help="What growth and rates look back on.")
@click.option("--severity", type=click.Choice(["info", "warning", "critical"]), default="warning", show_default=True)
@click.option("--receiver", "receivers", multiple=True, metavar="ID", help="Who is told. Repeats.")
@click.option("--objective", type=Figure(), help="Of an SLO, in percent.")
@click.option("--latency", "--latency-ms", "latency_ms", type=DURATION, help="Of slo_latency.")
@click.option("--preview", is_flag=True, help="Only say what it would find now.")
@target_options
@json_option
def add(name: str, receivers: tuple[str, ...], preview: bool, target: Target, as_json: bool, **given: Any) -> None:
    """Make an alert rule, or try one out."""
    body = {"name": name, "receivers": list(receivers), **{key: v for key, v in given.items() if v is not None}}
    found = _ask(target, "POST", "/v1/alert-rules/preview" if preview else "/v1/alert-rules", body)
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
    """Remove an alert rule and its alerts."""
    confirm(f"Remove alert rule {rule} and its alerts?", is_sure=is_sure)
    run(ask(target, lambda admin: admin.request("DELETE", f"/v1/alert-rules/{rule}")))
    if as_json:
        put_json({"id": rule, "deleted": True})
    else:
        tell(f"alert rule {rule} is removed, and its alerts")


@alert.command("test")
@click.argument("rule", metavar="RULE")
@target_options
@json_option
def test(rule: str, target: Target, as_json: bool) -> None:
    """Tell the receivers of a rule, with a message that says that it is a test."""
    found = _ask(target, "POST", f"/v1/alert-rules/{rule}/test")
    _show(found["items"], ("receiver", "ok", "status", "error", "ms"), as_json=as_json)


@alert.command("kinds")
@target_options
@json_option
def kinds(target: Target, as_json: bool) -> None:
    """Show what rules may be about."""
    _show(_all(target, "/v1/alerts/kinds"), ("kind", "about", "direction", "unit", "meaning"), as_json=as_json)


@alert.command("silence")
@click.option("--queue", metavar="PATTERN", help="Alerts about these queues.")
@click.option("--rule", metavar="RULE", help="Alerts of this rule.")
@click.option("--for", "for_ms", type=DURATION, help="For how long: 90s, 15m, 2h, 7d.")
@click.option("--minutes", type=FigureRange(min=0, min_open=True), help="The same in minutes.")
@click.option("--reason", required=True, help="Why; it is shown to everybody.")
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
    """Mute alerts for a while."""
    if (for_ms is None) == (minutes is None):
        raise click.UsageError("say for how long with --for, such as --for 2h")
    duration_ms = round(minutes * 60_000) if minutes is not None else for_ms
    named = {name: value for name, value in (("queue", queue), ("rule", rule)) if value is not None}
    found = _ask(target, "POST", "/v1/silences", {**named, "duration_ms": duration_ms, "reason": reason})
    if as_json:
        put_json(found)
    else:
        put(found["id"])
        tell(f"{counted(found['mutes'], 'alert is', 'alerts are')} muted until {found['ends_at']}")


@alert.command("silences")
@target_options
@json_option
def silences(target: Target, as_json: bool) -> None:
    """Show silences, those that are over among them."""
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
    run(ask(target, lambda admin: admin.request("DELETE", f"/v1/silences/{silence}")))
    if as_json:
        put_json({"id": silence, "deleted": True})
    else:
        tell(f"silence {silence} is over")


@alert.command("receivers")
@target_options
@json_option
def receivers(target: Target, as_json: bool) -> None:
    """Show who is told, and how that went."""
    fields = ("id", "name", "type", "url", "delivered", "failed", "last_error")
    _show(_all(target, "/v1/alert-receivers"), fields, as_json=as_json)


@alert.command("add-receiver")
@click.argument("name", metavar="NAME")
@click.option("--webhook", metavar="URL", help="Where webhooks go; without it alerts go into the server's log.")
@target_options
@json_option
def add_receiver(name: str, webhook: str | None, target: Target, as_json: bool) -> None:
    """Make a receiver. The secret that its webhooks are signed with is shown this once."""
    body = {"name": name, "type": "webhook", "url": webhook} if webhook else {"name": name, "type": "log"}
    found = _ask(target, "POST", "/v1/alert-receivers", body)
    if as_json:
        put_json(found)
    else:
        put_fields({"id": found["id"], **({"secret": found["secret"]} if found["secret"] else {})})


@alert.command("export")
@click.option("--prometheus", is_flag=True, required=True, help="As a rules file of Prometheus.")
@target_options
def export(prometheus: bool, target: Target) -> None:
    """Put the rules on stdout, for another system."""
    found = run(ask(target, lambda admin: admin.request("GET", "/v1/alert-rules/prometheus")))
    put(found.text.rstrip("\n"))
