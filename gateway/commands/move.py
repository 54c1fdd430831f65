"""`pushq move`: moves the ready messages of one queue to another; an interrupt loses none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.base import command, json_option, run, stop_signal
from gateway.commands.exits import Failure, translate
from gateway.commands.figures import WholeRange
from gateway.commands.names import queue_names
from gateway.commands.output import progress, put_json, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

if TYPE_CHECKING:
    from gateway.commands.mover import Mover

COMPANIONS = (".dead", ".late")


@command("move")
@click.argument("source", metavar="FROM", shell_complete=queue_names)
@click.argument("to", metavar="TO", shell_complete=queue_names)
@click.option("--count", type=WholeRange(min=1), help="At most so many.  [default: what is ready now]")
@click.option("--new-ids", is_flag=True, help="TO makes ids of its own, and drops no message for its id.")
@click.option("--one-step", is_flag=True, help="Move nothing where ack and publish are not one step.")
@target_options
@json_option
def move(source: str, to: str, count: int | None, new_ids: bool, one_step: bool, target: Target, as_json: bool) -> None:
    """Move messages that are ready in FROM to TO, in their order.

    A message keeps its body, content type, headers, key, priority, id, reply_to, correlation_id, and what is left of
    its life by the server's clock, or up to two seconds more; its attempts begin again, and a trace context stays
    behind. Scheduled messages, and those that consumers have, stay. For dead letters there is `pushq queue redrive`.

    Where one of the two queues names the other in colocate_with, each message leaves FROM and comes to TO in one step:
    whatever happens, it is in one of them. Elsewhere it is stored in TO first and acked then, one by one; a command
    that is killed in between leaves it in both, and run again within the dedupe_window_ms of TO it stores no second
    one. In a TO with dedupe: id an id that the server made becomes another one, for in two queues two messages may
    have it.

    What TO knows already it drops, as with any publish; FROM has it no more, so it is gone. --new-ids keeps what TO
    would know by its id (dedupe: id), not what it knows by its content (dedupe: content).

    Ctrl-C ends it after the messages under way, with 1. The key needs the scopes view and consume for FROM, view and
    publish for TO.
    """
    if source == to:
        raise click.UsageError("FROM and TO are one queue: name two")
    told = run(_move(source, to, count, new_ids, one_step, target))
    if as_json:
        put_json(told)


async def _move(
    source: str, to: str, count: int | None, new_ids: bool, one_step: bool, target: Target
) -> dict[str, Any]:
    from gateway.commands.mover import Mover, Stopped

    async with target.admin() as admin:
        begins, ends = await admin.get_queue(source), await admin.get_queue(to)
        _check(begins, target)
        is_one_step = _has_step(begins, ends)
        if not is_one_step:
            _tell_two_steps(begins, ends, target, is_refused=one_step)
        mover = Mover(admin, begins, ends, is_one_step=is_one_step, must_be_one_step=one_step, new_ids=new_ids)
        wanted = min(count or begins["stats"]["ready"], begins["stats"]["ready"])
        stop = stop_signal()
        try:
            with progress(f"moving {source} to {to}", wanted) as advance:
                while mover.done < wanted and not stop.is_set() and await mover.batch(wanted - mover.done):
                    advance(mover.done)
        except Stopped as stopped:
            failure = translate(stopped.error) or Failure(str(stopped.error))
            about = (f"this is about message {stopped.message_id}",) if stopped.message_id else ()
            failure.lines += (*about, *_summary(mover, source, to))
            raise failure from stopped
    if stop.is_set() and mover.done < wanted:
        first, *more = _summary(mover, source, to)
        raise Failure(f"interrupted: {first}", lines=more)
    for line in _summary(mover, source, to):
        tell(line)
    return {
        "from": source,
        "to": to,
        "moved": mover.moved,
        "repeats": mover.repeats,
        "lapsed": mover.lapsed,
        "in_both": mover.in_both,
        "in_doubt": mover.in_doubt,
        "one_step": mover.is_one_step,
    }


def _check(source: Mapping[str, Any], target: Target) -> None:
    name, config = source["name"], source["config"]
    if config["kind"] == "stream":
        raise click.UsageError(f'FROM "{name}" is a stream, which keeps its messages: nothing can be moved out of it')
    if config["delivery"] == "at_most_once":
        raise click.UsageError(
            f'FROM "{name}" delivers at most once, so a message is gone before it is stored elsewhere: take it with'
            f" {target.command(f'consume {name} --json')}"
        )


def _has_step(source: Mapping[str, Any], to: Mapping[str, Any]) -> bool:
    names = source["config"].get("colocate_with") == to["name"] or to["config"].get("colocate_with") == source["name"]
    return names and not to["name"].endswith(COMPANIONS)


def _tell_two_steps(source: Mapping[str, Any], to: Mapping[str, Any], target: Target, *, is_refused: bool) -> None:
    source_name, to_name = source["name"], to["name"]
    fact = f'"{source_name}" and "{to_name}" have no common step'
    remedy = f"{target.command(f'queue update {to_name} --colocate-with {source_name}')} gives them one"
    if is_refused:
        raise Failure(f"{fact}, so --one-step moves nothing", lines=[remedy])
    tell(f"{fact}: each message is stored, then acked. {remedy}")


def _summary(mover: Mover, source: str, to: str) -> list[str]:
    """One line for each outcome that messages had."""
    lines = [f'{counted(mover.moved, "message")} moved from "{source}" to "{to}"']
    if mover.dropped:
        known_by = "content" if mover.knows_content else "ids"
        remedy = "" if mover.knows_content else "; --new-ids keeps such messages"
        lines.append(f'{mover.dropped} of them are gone: "{to}" knew their {known_by} and stored nothing{remedy}')
    if again := mover.repeats - mover.dropped:
        lines.append(f'{again} of them had been stored in "{to}" by an earlier run')
    if mover.lapsed:
        lines.append(f'{mover.lapsed} stay in "{source}": their leases had ended')
    if mover.in_both:
        lines.append(f'{mover.in_both} are stored in "{to}" and could not be acked: they are in both queues')
    if mover.in_doubt:
        lines.append(f"{mover.in_doubt} are in one of the two, no answer said in which")
    return lines
