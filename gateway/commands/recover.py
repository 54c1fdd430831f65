"""`pushq recover …`: confirmed messages that only a lost leader had: shown, published again or dropped."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from gateway.commands.asking import ask
from gateway.commands.base import group, json_option, run, yes_option
from gateway.commands.exits import Failure
from gateway.commands.output import confirm, put_json, put_table, size, tell
from gateway.commands.target import Target, target_options
from web_console.wording import counted

ROUNDS_MAX = 1_000
"""Requests of one `publish`, of some seconds each; then the command has to be run again."""


def _ask(target: Target, method: str, path: str, json: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = run(ask(target, lambda admin: admin.ask(method, path, json=json)))
    return found


def _path(piece: str, act: str = "") -> str:
    return f"/v1/cluster/recovery/{quote(piece, safe='')}{act}"


def _warn_unreachable(names: list[str]) -> None:
    if names:
        tell(f"unreachable, may hold more: {', '.join(names)}")


@group("recover")
def recover() -> None:
    """Recover messages that a lost leader confirmed alone.

    In a shard with async replication, a leader confirms messages that only its own disk has. If another backend becomes
    leader before they are copied, they go into quarantine on the old leader when it returns: `list` shows them,
    `publish` puts them back into their queue, `drop` deletes them. Nothing else touches them. The key needs the scope
    operator.
    """


@recover.command("list")
@target_options
@json_option
def list_pieces(target: Target, as_json: bool) -> None:
    """Show what is in quarantine, one piece per queue and leadership."""
    found = _ask(target, "GET", "/v1/cluster/recovery")
    if as_json:
        put_json(found)
        return
    if found["pieces"]:
        put_table(
            ("piece", "queue", "messages", "in doubt", "size", "confirmed from", "until", "kept by"),
            [_row(piece) for piece in found["pieces"]],
        )
    else:
        tell("quarantine is empty")
    _warn_unreachable(found["unreachable"])


def _queue(piece: dict[str, Any]) -> str:
    name = f"{piece['tenant']}/{piece['queue']}" if piece["queue"] else "(unknown)"
    return name if piece["queue_exists"] else f"{name} (deleted)"


def _row(piece: dict[str, Any]) -> list[Any]:
    return [
        piece["name"],
        _queue(piece),
        piece["messages"],
        piece["in_doubt"] or "–",
        size(piece["bytes"]),
        piece["confirmed_from"],
        piece["confirmed_until"],
        ",".join(piece["backends"]),
    ]


@recover.command("show")
@click.argument("piece", metavar="PIECE")
@target_options
@json_option
def show(piece: str, target: Target, as_json: bool) -> None:
    """Show the messages of a piece, without their bodies."""
    found = _ask(target, "GET", _path(piece))
    if as_json:
        put_json(found)
        return
    put_table(
        ("id", "key", "confirmed", "expires", "in doubt"),
        [
            [
                one["id"],
                one["key"] or "–",
                one["confirmed_at"],
                one["expires_at"] or "–",
                "yes" if one["in_doubt"] else "–",
            ]
            for one in found["items"]
        ],
    )
    if found["more"]:
        tell(f"and {found['more']} more")


@recover.command("publish")
@click.argument("piece", metavar="PIECE")
@click.option("--dry-run", is_flag=True, help="Only show what would be published.")
@click.option(
    "--in-doubt", is_flag=True, help="Also publish messages that may already be in the queue: they may be duplicated."
)
@click.option(
    "--partial", is_flag=True, help="Publish although some backends are unreachable: drop later what they bring back."
)
@target_options
@json_option
def publish(piece: str, dry_run: bool, in_doubt: bool, partial: bool, target: Target, as_json: bool) -> None:
    """Publish the messages of a piece to their queue again, each once.

    You can interrupt it and run it again. A message leaves the quarantine once its queue has confirmed it; a message
    that a run started but did not finish within half of the queue's dedupe_window_ms is in doubt from then on.
    """
    wanted = {"dry_run": dry_run, "in_doubt": in_doubt, "partial": partial}
    total = {"published": 0, "already_there": 0, "expired": 0}
    for _ in range(ROUNDS_MAX):
        found = _ask(target, "POST", _path(piece, "/publish"), wanted)
        for name in total:
            total[name] += found[name]
        gets_on = any(found[name] for name in total)
        if dry_run or found["left"] <= found["in_doubt"] or found["problems"] or not gets_on:
            break
    found |= total
    if as_json:
        put_json(found)
    else:
        _tell_published(piece, found)
    if not dry_run and found["left"]:
        raise Failure(f"{counted(found['left'], 'message stays', 'messages stay')} in quarantine{_why(found)}")


def _tell_published(piece: str, found: dict[str, Any]) -> None:
    verb = "would be published" if found["dry_run"] else "published"
    tell(f"piece {piece}: {counted(found['published'], 'message')} {verb}")
    if found["already_there"]:
        tell(f"{found['already_there']} were already in the queue")
    if found["expired"]:
        tell(f"{found['expired']} had expired and {'would be' if found['dry_run'] else 'are'} discarded")
    if found["dry_run"] and found["in_doubt"]:
        tell(f"{found['in_doubt']} in doubt would stay; --in-doubt publishes them too")
    for problem in found["problems"] if found["dry_run"] else []:
        tell(problem)


def _why(found: dict[str, Any]) -> str:
    why = list(found["problems"])
    if found["in_doubt"]:
        why.append(f"{found['in_doubt']} may already be in the queue; --in-doubt publishes them too")
    return ": " + "; ".join(why) if why else "; run it again"


@recover.command("drop")
@click.argument("piece", metavar="PIECE")
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped.")
@target_options
@json_option
def drop(piece: str, is_sure: bool, dry_run: bool, target: Target, as_json: bool) -> None:
    """Permanently delete the messages of a piece. Their producers were told that they are stored."""
    known = _ask(target, "GET", _path(piece))["piece"]
    what = f"{counted(known['messages'], 'confirmed message')} of {_queue(known)}"
    if dry_run:
        tell(f"would drop {what}")
        return
    confirm(f"Permanently drop {what}?", is_sure=is_sure)
    found = _ask(target, "POST", _path(piece, "/drop"), {"messages": known["messages"]})
    if as_json:
        put_json(found)
        return
    tell(f"dropped {what}")
    _warn_unreachable(found["unreachable"])
