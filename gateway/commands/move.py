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
@click.option("--count", type=WholeRange(min=1), help="Maximum number of messages.  [default: what is ready now]")
@click.option("--new-ids", is_flag=True, help="Let TO assign new ids, so that it drops no message as a duplicate id.")
@click.option("--one-step", is_flag=True, help="Refuse to move unless ack and publish are one atomic step.")
@target_options
@json_option
def move(source: str, to: str, count: int | None, new_ids: bool, one_step: bool, target: Target, as_json: bool) -> None:
    """Move ready messages from FROM to TO, in order.

    A message keeps its body, content type, headers, key, priority, id, reply_to, correlation_id, and its remaining TTL
    by the server's clock (or up to two seconds more); its attempts restart, and its trace context is dropped. Scheduled
    and in-flight messages stay. To move dead letters, use `pushq queue redrive`.

    If one of the queues names the other in colocate_with, each message moves in one atomic step: whatever happens, it
    is in exactly one queue. Otherwise each message is stored in TO, then acked in FROM; if the command is killed in
    between, the message is in both queues, and running it again within the dedupe_window_ms of TO does not store it
    twice. If TO has dedupe: id, ids assigned by the server are replaced, since they are unique only within a queue.

    Duplicates are dropped by TO, as with any publish; they are then gone from FROM too. --new-ids keeps messages that
    TO would drop for their id (dedupe: id), but not for their content (dedupe: content).

    Ctrl-C stops after the messages in progress, with exit code 1. The key needs the scopes view and consume for FROM,
    view and publish for TO.
    """
    if source == to:
        raise click.UsageError("FROM and TO are the same queue")
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
            about = (f"the error is about message {stopped.message_id}",) if stopped.message_id else ()
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
        raise click.UsageError(f'FROM "{name}" is a stream and keeps its messages: they cannot be moved out')
    if config["delivery"] == "at_most_once":
        raise click.UsageError(
            f'FROM "{name}" delivers at most once, so a message is gone before it is stored in TO: read it with '
            f"{target.command(f'consume {name} --json')}"
        )


def _has_step(source: Mapping[str, Any], to: Mapping[str, Any]) -> bool:
    names = source["config"].get("colocate_with") == to["name"] or to["config"].get("colocate_with") == source["name"]
    return names and not to["name"].endswith(COMPANIONS)


def _tell_two_steps(source: Mapping[str, Any], to: Mapping[str, Any], target: Target, *, is_refused: bool) -> None:
    source_name, to_name = source["name"], to["name"]
    fact = f'"{source_name}" and "{to_name}" are not colocated'
    remedy = f"To colocate them, run {target.command(f'queue update {to_name} --colocate-with {source_name}')}"
    if is_refused:
        raise Failure(f"{fact}, so --one-step cannot move anything", lines=[remedy])
    tell(f"{fact}: each message is stored, then acked. {remedy}")


def _summary(mover: Mover, source: str, to: str) -> list[str]:
    """One line for each outcome that messages had."""
    lines = [f'{counted(mover.moved, "message")} moved from "{source}" to "{to}"']
    if mover.dropped:
        known_by = "content" if mover.knows_content else "ids"
        remedy = "" if mover.knows_content else "; use --new-ids to keep such messages"
        lines.append(f'{mover.dropped} of them were dropped: "{to}" already knew their {known_by}{remedy}')
    if again := mover.repeats - mover.dropped:
        lines.append(f'{again} of them were already stored in "{to}" by an earlier run')
    if mover.lapsed:
        lines.append(f'{mover.lapsed} stay in "{source}": their leases had expired')
    if mover.in_both:
        lines.append(f'{mover.in_both} are in both queues: stored in "{to}", but not acked')
    if mover.in_doubt:
        lines.append(f"{mover.in_doubt} are in one of the two queues; no answer said which")
    return lines
