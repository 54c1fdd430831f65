"""`pushq usage …`: a tenant's usage, and the files of usage rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import group, json_option, run
from gateway.commands.exits import Exit, Failure, os_text
from gateway.commands.figures import WholeRange
from gateway.commands.names import queue_names
from gateway.commands.output import put_items, put_json, put_table, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted, plural

FOLDER = click.Path(file_okay=False, path_type=Path)
THERE = click.Path(exists=True, file_okay=False, path_type=Path)


@group("usage")
def usage() -> None:
    """Show usage; collect and verify usage files."""


@usage.command("show")
@click.option("--from", "from_", metavar="DAY", help="First day, in UTC.  [default: the first of this month]")
@click.option("--to", metavar="DAY", help="Last day, in UTC.  [default: today]")
@click.option("--queue", metavar="QUEUE", shell_complete=queue_names, help="Only this queue.")
@click.option("--tenant", metavar="TENANT", help="The tenant to show; another one requires the scope operator.")
@target_options
@json_option
def show(
    from_: str | None, to: str | None, queue: str | None, tenant: str | None, target: Target, as_json: bool
) -> None:
    """Show the billable counts of each queue, exact as of now."""

    async def page(admin: object, cursor: str | None) -> dict[str, object]:
        return await admin.usage(from_=from_, to=to, queue=queue, tenant=target.tenant(tenant), cursor=cursor)  # type: ignore[attr-defined,no-any-return]

    items = run(ask(target, lambda admin: all_pages(lambda cursor: page(admin, cursor))))
    if as_json:
        put_items(items)
    else:
        rows = [[i["queue"], i["published"], i["published_bytes"], i["delivered"]] for i in items]
        put_table(["queue", "published", "bytes", "settled"], rows)


@usage.command("live")
@click.option("--tenant", metavar="TENANT", help="The tenant to show; another one requires the scope operator.")
@target_options
@json_option
def live(tenant: str | None, target: Target, as_json: bool) -> None:
    """Show the last hour by minute. Requires the job live_usage and the setting usage.live_dir."""
    found = run(ask(target, lambda admin: admin.live_usage(tenant=target.tenant(tenant))))
    if as_json:
        put_json(found)
        return
    names = ["requests", "messages", "bytes_in", "bytes_out"]
    put_table(["minute", *names], [[one["minute"], *(one[name] for name in names)] for one in found["minutes"]])
    tell(f"{found['state']}; last updated by the job: {found['looked_at'] or 'no time'}")


@usage.command("audit")
@click.option("--tenant", metavar="TENANT", help="The tenant to show; another one requires the scope operator.")
@click.option("--limit", type=WholeRange(1, 1000), default=50, show_default=True, help="Maximum number of entries.")
@target_options
@json_option
def audit(tenant: str | None, limit: int, target: Target, as_json: bool) -> None:
    """Show the audit log of administrative actions, newest first."""
    found = run(ask(target, lambda admin: admin.audit(tenant=target.tenant(tenant), limit=limit)))
    if as_json:
        put_items(found["items"])
    else:
        rows = [[i["at"], i["name"], i["action"], i["target"], i["outcome"]] for i in found["items"]]
        put_table(["at", "key", "action", "target", "outcome"], rows)


@usage.command("collect")
@click.option("--to", "to", type=FOLDER, required=True, help="Output folder.")
@click.option(
    "--from", "sources", type=THERE, multiple=True, help="A usage folder. Repeatable.  [default: that of --data]"
)
@click.option("--move", "moves", is_flag=True, help="Delete each source file once it is safely copied.")
@click.option("--data", type=FOLDER, default=Path("./pushq-data"), show_default=True, help="A server's data folder.")
@json_option
def collect(to: Path, sources: Sequence[Path], moves: bool, data: Path, as_json: bool) -> None:
    """Collect usage files from several places into one folder; existing files are left unchanged."""
    from gateway.usage.collect import SameFolder
    from gateway.usage.collect import collect as bring_together

    places = list(sources) or [data / "usage"]
    try:
        done = bring_together(to, places, moves=moves)
    except SameFolder as error:
        raise Failure(f"cannot collect: {error}", exit=Exit.USAGE) from None
    except FileNotFoundError as error:
        raise Failure(f"cannot collect: {os_text(error)}") from None
    except OSError as error:
        raise Failure(f"cannot collect: {os_text(error)}", lines=["run it again to continue"]) from None
    if as_json:
        put_json({"copied": done.copied, "known": done.known, "removed": done.removed})
    else:
        tell(f"{counted(done.copied, 'file')} copied, {done.known} {plural(done.known, 'was', 'were')} already there")


@usage.command("verify")
@click.argument("folder", metavar="DIR", type=THERE)
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Check that the ledger files in DIR are complete and add up."""
    from gateway.usage.files import Damaged
    from gateway.usage.verify import verify as check

    try:
        report = check(folder)
    except (Damaged, OSError) as error:
        raise Failure(str(error), exit=Exit.FAILED) from None
    logs = [
        {"partition": log.name, "held": log.held, **{kind: log.totals[kind] for kind in sorted(log.totals)}}
        for log in sorted(report.logs.values(), key=lambda log: log.name)
    ]
    broken = [one._asdict() for one in report.broken]
    if as_json:
        put_json({"files": report.files, "rows": report.rows, "partitions": logs, "broken": broken})
    else:
        put_table(
            ["partition", "published", "settled", "held"],
            [[log["partition"], log.get("published", 0), log.get("settled", 0), log["held"]] for log in logs],
        )
        tell(f"{counted(report.files, 'file')}, {counted(report.rows, 'row')}")
    if broken:
        lines = [f"{one.partition}: {one.detail}" for one in report.broken]
        raise Failure(f"the ledger is incomplete: {len(broken)} faults", exit=Exit.FAILED, lines=lines)


@usage.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("arguments", metavar="JOB [OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def run_spark_job(arguments: Sequence[str]) -> None:
    """Run a job on Spark over usage files or messages. Without JOB, lists the jobs; `JOB --help` shows its options."""
    try:
        from spark.jobs.main import main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise Failure(
            "jobs need Spark, and it is not installed", exit=Exit.FAILED, lines=["pip install 'pushq[spark]'"]
        )
    if code := main(arguments or ["--help"]):
        raise SystemExit(code)
