"""`pushq doctor`: tests the connection as a client uses it, step by step; says which step fails, and the remedy."""

from __future__ import annotations

from dataclasses import replace

import click

from gateway.commands.base import command, json_option, run
from gateway.commands.checks import Finding, examine
from gateway.commands.output import put, put_json, tell
from gateway.commands.target import Target, target_options

_SHOWN = ("name", "is_ok", "detail", "fix")


@command("doctor")
@click.argument("address", metavar="[URL]", required=False)
@click.option("--no-queue", is_flag=True, help="Skip the round trips, which need a temporary queue.")
@target_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, address: str | None, no_queue: bool, target: Target, as_json: bool) -> None:
    """Diagnose the connection to a server, step by step.

    Checks address, health, clock, version, key, and a message over each transport. Each failure suggests a fix. The
    round trips create and delete a queue, so the key needs the scope admin. The exit code is that of the first failed
    check: 5 if the server is unreachable, 4 if the key is refused.
    """
    target = replace(target, url=address) if address else target
    findings = run(examine(target, with_queue=not no_queue))
    failed = [finding for finding in findings if not finding.is_ok]
    is_well = not failed
    if as_json:
        checks = [{name: getattr(finding, name) for name in _SHOWN} for finding in findings]
        put_json({"url": target.base_url, "ok": is_well, "checks": checks})
    else:
        _print(findings)
        tell(f"{target.base_url}: " + ("all checks passed" if is_well else "some checks failed"))
    if failed:
        ctx.exit(failed[0].exit)


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        verdict = click.style("ok  ", fg="green") if finding.is_ok else click.style("FAIL", fg="red", bold=True)
        put(f"{verdict}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.fix is not None:
            put(f"      {' ' * width}  → {finding.fix}")
