"""`pushq cluster plan`, `apply-plan`: plans which queues to move off hot clusters or to merge, and carries that out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.asking import all_pages, ask
from gateway.commands.base import command, json_option, run, yes_option
from gateway.commands.cluster_moves import WAIT_S, arrived, begin, place_of, spread
from gateway.commands.exits import Failure, translate
from gateway.commands.figures import FigureRange
from gateway.commands.output import confirm, progress, put, put_items, put_table, tell
from gateway.commands.places import Place, Step, is_split, listed, steps
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from backend_store.client.plans import Plan, PlannedMove
    from push.client import Admin

PROBLEMS_SAID_MAX = 20


@command("plan")
@target_options
@json_option
def plan(target: Target, as_json: bool) -> None:
    """Print which queues to move to relieve hot clusters, as a file for `pushq cluster apply-plan`.

    This is the manager's latest finding, for a person to review. When no cluster is hot, it lists shared queues that
    one cluster could handle alone, to be merged. A plan without moves means that no cluster is hot, or that no known
    move would help. The output is JSON, with or without --json.
    """
    from backend_store.client import plans

    found = run(ask(target, lambda admin: admin.ask("GET", "/v1/cluster"))).get("plan")
    if found is None:
        raise Failure("this server's version does not support plans; upgrade it")
    put(plans.written(plans.parse(json.dumps(found).encode())).decode().rstrip("\n"))


@command("apply-plan")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only check and print the plan.")
@click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="An existing cluster. Repeatable.")
@click.option(
    "--wait",
    "wait_s",
    type=FigureRange(min=1, max=86_400),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait, for each queue, until publishes go to its new clusters.",
)
@yes_option
@target_options
@json_option
def apply_plan(
    file: Path,
    dry_run: bool,
    clusters: Sequence[str],
    wait_s: float,
    is_sure: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Apply the plan in FILE, from `pushq cluster plan` or the job capacity_plan: move, split or merge queues.

    Queues are processed one at a time: the next one starts when publishes go to the new clusters of the one before.
    Partition counts are set first; in a queue that clusters share, each cluster has its own partitions, and none are
    removed. Nothing starts if any entry cannot be applied: single partitions cannot move. Run again after an
    interruption, the command skips what is done or under way.

    The key needs the scopes admin and operator. For --dry-run the scope admin is enough; if the server has no clusters,
    or the key lacks the scope operator, clusters are checked only against --cluster, and queues only within the key's
    tenant.
    """
    wanted = _read(file, clusters)
    rows = run(_apply(wanted, file, wait_s, target, is_dry=dry_run, is_sure=is_sure))
    if as_json:
        put_items(rows)
        return
    shown = [
        [one["tenant"], one["queue"], one["what"], one["from"] or "–", ",".join(one["to"]), _state(one)] for one in rows
    ]
    put_table(("tenant", "queue", "what", "from", "to", "state"), shown)
    if dry_run:
        grows, grow = "queue that gets more partitions", "queues that get more partitions"
        merged, split = sum(one.is_merge for one in wanted.moves), sum(map(is_split, wanted.partitions))
        many, more = len(wanted.moves) - merged, len(wanted.partitions) - split
        parts = [(many, "move", "moves"), (split, "split", "splits"), (merged, "merge", "merges"), (more, grows, grow)]
        said = ", ".join(counted(number, one, several) for number, one, several in parts if number)
        tell(f"the plan is valid: {said or 'nothing to do'}")


def _read(file: Path, clusters: Sequence[str]) -> Plan:
    from backend_store.client import plans
    from backend_store.model import InvalidRequest

    try:
        with file.open("rb") as opened:
            found = plans.parse(opened.read(plans.PLAN_BYTES_MAX + 1))
        if clusters:
            plans.check_clusters(found, clusters)
    except InvalidRequest as error:
        raise Failure(f"{file}: {error.detail}") from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    return found


async def _apply(
    wanted: Plan, file: Path, wait_s: float, target: Target, *, is_dry: bool, is_sure: bool
) -> list[dict[str, Any]]:
    async with target.admin() as admin:
        tenant = (await admin.usage(limit=1))["tenant"]
        found = await _checked(admin, wanted, file, tenant, is_dry=is_dry)
        todo = [step for step in found if not step.is_done]
        if not is_dry and todo:
            confirm(f"{_question(todo)}, at {target.base_url}?", is_sure=is_sure)
            await _carry_out(admin, todo, file, wait_s)
    return _rows(wanted, tenant, found, is_dry=is_dry)


async def _checked(admin: Admin, wanted: Plan, file: Path, tenant: str, *, is_dry: bool) -> list[Step]:
    """The steps of the plan. Empty if a dry run cannot know them. Raises `Failure`."""
    from backend_store.client import plans
    from backend_store.model import InvalidRequest

    queues = await all_pages(admin.list_queues)
    try:
        plans.check_queues(wanted, tenant, {one["name"]: _open(one) for one in queues})
        if (known := await _clusters(admin, is_dry=is_dry)) is None:
            return []
        plans.check_clusters(wanted, known)
    except InvalidRequest as error:
        raise Failure(f"{file}: {error.detail}") from None
    names = [(one.tenant, one.queue) for one in wanted.moves] + [(one.tenant, one.queue) for one in wanted.partitions]
    places = {name: await _place(admin, *name) for name in names}
    found = steps(wanted, places, tenant, {one["name"]: one["config"]["partitions"] for one in queues})
    if problems := [step.why_not for step in found if step.why_not]:
        more = len(problems) - PROBLEMS_SAID_MAX
        lines = [*problems[:PROBLEMS_SAID_MAX], *([f"and {more} more"] if more > 0 else [])]
        bad = counted(len(problems), "entry", "entries")
        raise Failure(f"{file}: {bad} cannot be applied; nothing was started", lines=lines)
    return found


async def _clusters(admin: Admin, *, is_dry: bool) -> list[str] | None:
    """The names of the clusters; None if a dry run's server has none, or does not tell."""
    from push.client.errors import ApiError

    try:
        await admin.ask("GET", "/v1/cluster/moves")
        return [one["name"] for one in (await admin.ask("GET", "/v1/cluster"))["clusters"]]
    except ApiError as error:
        if is_dry and error.code in ("not-found", "forbidden"):
            return None
        raise


async def _place(admin: Admin, tenant: str, queue: str) -> Place | None:
    from push.client.errors import ApiError

    try:
        return await place_of(admin, tenant, queue)
    except ApiError as error:
        if error.code != "queue-not-found":
            raise
        return None


def _question(todo: Sequence[Step]) -> str:
    from backend_store.client.plans import PlannedMove

    merged = sum(step.is_merge for step in todo)
    moves = sum(isinstance(step.entry, PlannedMove) for step in todo) - merged
    split = sum(not isinstance(step.entry, PlannedMove) and is_split(step.entry) for step in todo)
    resized = len(todo) - moves - merged - split
    said = [f"move {counted(moves, 'queue')} to other clusters"] if moves else []
    said += [f"split {counted(split, 'queue')} over several clusters"] if split else []
    said += [f"merge {counted(merged, 'queue')} into one cluster each"] if merged else []
    said += [f"set the partitions of {counted(resized, 'queue')}"] if resized else []
    return listed(said).capitalize()


async def _carry_out(admin: Admin, todo: Sequence[Step], file: Path, wait_s: float) -> None:
    """Carries out the steps one by one. Raises `Failure` at the first that fails, with the number of those done."""
    from push.client.errors import PushqError

    with progress(f"applying {file.name}", len(todo)) as advance:
        for done, step in enumerate(todo):
            try:
                await _do(admin, step, wait_s)
            except (PushqError, Failure) as error:
                failure = error if isinstance(error, Failure) else translate(error)
                assert failure is not None
                failure.lines += (f"stopped at {step.at}; {done} of {len(todo)} are done. Run it again to continue",)
                raise failure from error
            advance(done + 1)


async def _do(admin: Admin, step: Step, wait_s: float) -> None:
    from backend_store.client.plans import PlannedMove

    entry = step.entry
    if isinstance(entry, PlannedMove):
        await begin(admin, entry.tenant, entry.queue, entry.to)
        await arrived(admin, entry.tenant, entry.queue, [entry.to], wait_s)
        return
    if step.partitions is not None:
        await admin.update_queue(entry.queue, {"partitions": step.partitions})
    if is_split(entry):
        await spread(admin, entry.tenant, entry.queue, entry.clusters)
        await arrived(admin, entry.tenant, entry.queue, entry.clusters, wait_s)


def _rows(wanted: Plan, tenant: str, found: Sequence[Step], *, is_dry: bool) -> list[dict[str, Any]]:
    """The rows of the result, in the order of the file."""
    rows: list[dict[str, Any]] = [
        {"tenant": one.tenant, "queue": one.queue, "what": _what(one), "from": one.source, "to": [one.to]}
        for one in wanted.moves
    ]
    rows += [
        {
            "tenant": one.tenant,
            "queue": one.queue,
            "what": f"{'split, ' if is_split(one) else ''}{counted(one.partitions, 'partition')}",
            "from": None,
            "to": list(one.clusters),
        }
        for one in wanted.partitions
    ]
    places = [f"moves[{at}]" for at in range(len(wanted.moves))]
    places += [f"partitions[{at}]" for at in range(len(wanted.partitions))]
    by_place = {step.at: step for step in found}
    for row, at in zip(rows, places, strict=True):
        step = by_place.get(at)
        row["is_checked"] = step is not None or row["tenant"] == tenant
        row["state"] = None if step is None else "passed_over" if step.is_done else "to_do" if is_dry else "done"
    return rows


def _state(row: dict[str, Any]) -> str:
    if row["state"] is None:
        return "looked up" if row["is_checked"] else "not looked up"
    return str(row["state"]).replace("_", " ")


def _what(move: PlannedMove) -> str:
    if move.is_merge:
        return "merge"
    return "the whole queue" if move.partition is None else f"partition {move.partition}"


def _open(queue: dict[str, Any]) -> int:
    """How many open partitions the queue has."""
    return int(queue["partitions"]["open"]) if "partitions" in queue else 1
