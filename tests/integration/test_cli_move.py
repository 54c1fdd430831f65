"""`pushq move` against a real server: nothing is lost and nothing doubled, whatever ends it."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar, Self, cast

import pytest

from gateway.commands.mover import ALONE_MESSAGES_MAX, STEP_MESSAGES_MAX, Mover, Stopped
from push.client import Admin, Unavailable
from tests.support.cli import RUN_S_MAX, Cli
from tests.support.patience import until
from tests.support.server import PushqServer

MANY = 2_000
SHOWN_MAX = 500
FEW = 80
"""One by one, each waits for the disk."""


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def source(cli: Cli) -> str:
    return cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")


@pytest.fixture(params=["one step", "two steps"])
def way(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


@pytest.fixture
def batch(way: str) -> int:
    """How many messages are received together."""
    return STEP_MESSAGES_MAX if way == "one step" else ALONE_MESSAGES_MAX


@pytest.fixture
def to(way: str, cli: Cli, source: str) -> str:
    name = cli.create_queue(f"{source}-to")
    if way == "one step":
        cli("queue", "update", name, "--colocate-with", source)
    return name


def fill(cli: Cli, queue: str, count: int) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(count)))


def bodies(cli: Cli, queue: str) -> list[Any]:
    """Of what lies ready, up to some hundreds."""
    found = cli("queue", "peek", queue, "--limit", str(SHOWN_MAX), "--json").json()["items"]
    assert len(found) < SHOWN_MAX
    return [item["body"] for item in found]


def count(cli: Cli, queue: str) -> int:
    stats = cli.stats(queue)
    return stats["ready"] + stats["in_flight"] + stats["delayed"] + stats["dead"]


def test_messages_move_in_order_with_what_their_producer_said(cli: Cli, source: str, to: str, batch: int) -> None:
    for queue in (source, to):
        cli("queue", "update", queue, "--priorities", "3")
    said = ("--key", "ann", "--header", "x=a b", "--priority", "2", "--ttl", "1h", "--reply-to", "r")
    cli("publish", source, '{"n": 1}', *said, "--id", "m-1", "--correlation-id", "c")
    cli("publish", source, "-", "--content-type", "application/octet-stream", stdin=b"\x00\xff")
    cli("publish", source, "later", "--delay", "1h")
    fill(cli, source, 2 * batch)
    before = cli("queue", "peek", source, "--limit", "300", "--json").json()["items"]
    ran = cli("move", source, to)
    assert f'{2 * batch + 2} messages moved from "{source}" to "{to}"' in ran.err and ran.out == ""
    after = cli("queue", "peek", to, "--limit", "300", "--json").json()["items"]
    kept = ("id", "body", "body_base64", "content_type", "headers", "key", "priority", "reply_to", "correlation_id")
    assert [[item.get(name) for name in kept] for item in after] == [
        [item.get(name) for name in kept] for item in before
    ]
    assert "expires_at" in after[0] and "expires_at" not in after[1]
    left = cli.stats(source)
    assert (left["ready"], left["in_flight"], left["delayed"]) == (0, 0, 1)


class AnHourAhead(datetime):
    """The clock of a machine that nobody set."""

    WRONG_BY: ClassVar = timedelta(hours=1)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cast("Self", datetime.now(tz) + cls.WRONG_BY)


class AnHourBehind(AnHourAhead):
    WRONG_BY = timedelta(hours=-1)


@pytest.mark.anyio
@pytest.mark.parametrize("clock", [AnHourAhead, AnHourBehind])
async def test_a_wrong_clock_of_ours_takes_nothing_from_a_life_and_gives_it_nothing(
    clock: type[datetime], cli: Cli, source: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("publish", source, "lives", "--ttl", "10m")
    monkeypatch.setattr("gateway.commands.mover.datetime", clock)
    async with Admin(cli.server.url, cli.server.key) as admin:
        begins, ends = await admin.get_queue(source), await admin.get_queue(to)
        (before,) = (await admin.peek(source))["items"]
        is_one_step = ends["config"]["colocate_with"] == source
        mover = Mover(admin, begins, ends, is_one_step=is_one_step, must_be_one_step=is_one_step, new_ids=False)
        assert await mover.batch(1) and mover.moved == 1
        (after,) = (await admin.peek(to))["items"]
    longer = datetime.fromisoformat(after["expires_at"]) - datetime.fromisoformat(before["expires_at"])
    assert timedelta(seconds=-1) < longer < timedelta(minutes=1)


def test_count_moves_the_first_and_json_says_how(cli: Cli, source: str, to: str, batch: int) -> None:
    some = batch + 10
    fill(cli, source, 2 * batch)
    told = cli("move", source, to, "--count", str(some), "--json").json()
    assert (told["moved"], told["repeats"], told["in_both"], told["in_doubt"]) == (some, 0, 0, 0)
    assert bodies(cli, to) == list(range(some))
    assert bodies(cli, source) == list(range(some, 2 * batch))


def test_ctrl_c_ends_it_after_what_is_under_way(cli: Cli, source: str, to: str) -> None:
    fill(cli, source, FEW)
    with cli.running("move", source, to) as moving:
        until(lambda: cli.stats(to)["ready"] > 0, "it moves")
        moving.send_signal(signal.SIGINT)
        _, err = moving.communicate(timeout=RUN_S_MAX)
    moved = cli.stats(to)["ready"]
    if moved < FEW:
        assert moving.returncode == 1
        assert f"interrupted: {moved} messages moved" in err.decode()
    assert (cli.stats(source)["ready"], cli.stats(source)["in_flight"]) == (FEW - moved, 0)
    cli("move", source, to)
    assert bodies(cli, to) == list(range(FEW))


def test_killed_in_one_step_each_message_is_in_one_queue(cli: Cli, source: str) -> None:
    to = cli.create_queue(f"{source}-to")
    cli("queue", "update", source, "--colocate-with", to)
    fill(cli, source, MANY)
    with cli.running("move", source, to) as moving:
        until(lambda: cli.stats(to)["ready"] > 0, "it moves")
        moving.kill()
        moving.wait(RUN_S_MAX)
    until(lambda: count(cli, source) + count(cli, to) == MANY, "what the server had begun is done")
    moved = [json.loads(line) for line in cli("consume", to, "--raw", "--until-empty").out.splitlines()]
    assert moved == list(range(len(moved)))
    assert count(cli, source) == MANY - len(moved)


class Ackless(Admin):
    """Its process dies between the publish and the ack."""

    receipts: list[str]

    async def ask(self, method: str, path: str, *, json: Any = None, **options: Any) -> dict[str, Any]:
        if path.endswith("/ack"):
            self.receipts = json["receipts"]
            raise ZeroDivisionError
        return await super().ask(method, path, json=json, **options)


@pytest.mark.anyio
@pytest.mark.parametrize("dedupe", ["none", "id"])
@pytest.mark.parametrize("ttl", [(), ("--ttl", "1h")])
async def test_run_again_after_a_death_between_two_steps_nothing_is_stored_twice(
    dedupe: str, ttl: tuple[str, ...], cli: Cli, source: str
) -> None:
    to = f"{source}-to"
    cli("queue", "create", to, "--dedupe", dedupe)
    cli("publish", source, "once", *ttl)
    async with Ackless(cli.server.url, cli.server.key) as admin:
        begins, ends = await admin.get_queue(source), await admin.get_queue(to)
        mover = Mover(admin, begins, ends, is_one_step=False, must_be_one_step=False, new_ids=False)
        with pytest.raises(ZeroDivisionError):
            await mover.batch(10)
        assert (count(cli, source), count(cli, to)) == (1, 1)
        await admin.nack(source, admin.receipts, delay_ms=0)
    ran = cli("move", source, to)
    word = {"none": "were already stored", "id": "were dropped"}[dedupe]
    assert f"1 of them {word}" in ran.err
    assert (count(cli, source), count(cli, to)) == (0, 1)


@pytest.mark.anyio
async def test_server_that_does_not_come_back_leaves_the_rest(cli: Cli, source: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.commands.mover.PATIENCE_S", 0)
    to = cli.create_queue(f"{source}-to")
    cli("publish", source, "stays")

    class Away(Admin):
        async def request(self, method: str, path: str, **options: Any) -> Any:
            if path.endswith("/messages"):
                raise Unavailable("gone")
            return await super().request(method, path, **options)

    async with Away(cli.server.url, cli.server.key) as admin:
        begins, ends = await admin.get_queue(source), await admin.get_queue(to)
        mover = Mover(admin, begins, ends, is_one_step=False, must_be_one_step=False, new_ids=False)
        with pytest.raises(Stopped, match="gone"):
            await mover.batch(10)
    assert (cli.stats(source)["ready"], count(cli, to), mover.done) == (1, 0, 0)


def test_full_queue_takes_what_fits_and_the_rest_stays_untried(cli: Cli, source: str, to: str, batch: int) -> None:
    room, left = batch + 10, batch - 5
    cli("queue", "update", to, "--max-messages", str(room))
    fill(cli, source, room + left)
    ran = cli.any("move", source, to)
    assert ran.code == 1
    assert "queue-full" in ran.err and f"{room} messages moved" in ran.err and "the error is about message" in ran.err
    assert (cli.stats(source)["ready"], cli.stats(source)["in_flight"]) == (left, 0)
    attempts = cli("consume", source, "--until-empty", "--format", "{attempt} {body}").out.splitlines()
    assert attempts == [f"1 {number}" for number in range(room, room + left)]


def test_repeats_are_dropped_by_a_queue_that_knows_their_ids_unless_they_get_new_ones(
    cli: Cli, source: str, to: str
) -> None:
    other = f"{to}-ids"
    cli("queue", "create", other, "--dedupe", "id", "--colocate-with", source)
    for queue in (source, other):
        cli("publish", queue, "same", "--id", "m-1")
    ran = cli("move", source, other)
    assert (
        f'1 of them were dropped: "{other}" already knew their ids' in ran.err and "--new-ids to keep such" in ran.err
    )
    assert (count(cli, source), count(cli, other)) == (0, 1)
    cli("publish", source, "same", "--id", "m-1")
    cli("move", source, other, "--new-ids")
    assert (count(cli, source), count(cli, other)) == (0, 2)


def test_repeat_of_a_message_that_was_consumed_is_in_no_queue(cli: Cli, source: str) -> None:
    to = f"{source}-to"
    cli("queue", "create", to, "--dedupe", "id", "--colocate-with", source)
    for queue in (source, to):
        cli("publish", queue, "same", "--id", "m-1")
    cli("consume", to, "--count", "1")
    assert "1 of them were dropped" in cli("move", source, to).err
    assert (count(cli, source), count(cli, to)) == (0, 0)


@pytest.mark.parametrize("new_ids", [(), ("--new-ids",)])
@pytest.mark.parametrize("is_one_step", [False, True])
def test_repeats_by_content_are_dropped_whatever_their_ids(
    is_one_step: bool, new_ids: tuple[str, ...], cli: Cli, source: str
) -> None:
    other = f"{source}-content"
    cli("queue", "create", other, "--dedupe", "content", *(("--colocate-with", source) if is_one_step else ()))
    for queue in (source, other):
        cli("publish", queue, "same")
    told = cli("move", source, other, *new_ids).err
    assert f'1 of them were dropped: "{other}" already knew their content' in told and "--new-ids" not in told
    assert (count(cli, source), count(cli, other)) == (0, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("is_one_step", [False, True])
async def test_ids_that_the_server_made_are_no_repeats_of_those_of_another_queue(
    is_one_step: bool, cli: Cli, source: str
) -> None:
    other, to = cli.create_queue(f"{source}-other"), f"{source}-to"
    cli("queue", "create", to, "--dedupe", "id")
    ids = set()
    async with Admin(cli.server.url, cli.server.key) as admin:
        for queue in (source, other):
            answer = await admin.ask("POST", f"/v1/queues/{queue}/messages", json={"messages": [{"body": queue}]})
            ids.add(answer["messages"][0]["id"])
    assert len(ids) == 1
    for queue in (source, other):
        if is_one_step:
            cli("queue", "update", queue, "--colocate-with", to)
        told = cli("move", queue, to, "--json").json()
        assert (told["moved"], told["repeats"], told["one_step"]) == (1, 0, is_one_step)
    assert bodies(cli, to) == [source, other]


@pytest.mark.anyio
async def test_ids_that_the_server_made_are_known_again_after_a_death_between_two_steps(cli: Cli, source: str) -> None:
    to = f"{source}-to"
    cli("queue", "create", to, "--dedupe", "id")
    async with Ackless(cli.server.url, cli.server.key) as admin:
        await admin.ask("POST", f"/v1/queues/{source}/messages", json={"messages": [{"body": "once"}]})
        begins, ends = await admin.get_queue(source), await admin.get_queue(to)
        mover = Mover(admin, begins, ends, is_one_step=False, must_be_one_step=False, new_ids=False)
        with pytest.raises(ZeroDivisionError):
            await mover.batch(10)
        await admin.nack(source, admin.receipts, delay_ms=0)
    told = cli("move", source, to).err
    assert f'1 of them were already stored in "{to}" by an earlier run' in told and "gone" not in told
    assert (count(cli, source), bodies(cli, to)) == (0, ["once"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["--kind", "stream"], "is a stream"),
        (["--delivery", "at_most_once"], "delivers at most once"),
    ],
)
def test_queue_out_of_which_nothing_can_be_moved_is_refused(
    settings: list[str], told: str, cli: Cli, source: str
) -> None:
    name = f"{source}-from"
    cli("queue", "create", name, *settings)
    cli("publish", name, "stays")
    ran = cli.any("move", name, source)
    assert ran.code == 2 and told in ran.err
    assert count(cli, name) == 1


def test_one_step_is_refused_where_there_is_none_with_the_command_that_makes_one(cli: Cli, source: str) -> None:
    to = cli.create_queue(f"{source}-to")
    cli("publish", source, "x")
    ran = cli.any("move", source, to, "--one-step")
    assert ran.code == 1
    remedy = f"queue update {to} --colocate-with {source}"
    assert remedy in ran.err
    cli(*remedy.split())
    assert cli("move", source, to, "--one-step", "--json").json()["one_step"] is True


def test_absent_queue_and_missing_scope_move_nothing(cli: Cli, source: str) -> None:
    cli("publish", source, "x")
    assert cli.any("move", source, "absent").code == 6
    to = cli.create_queue(f"{source}-to")
    scopes: Mapping[str, str] = {"PUSHQ_KEY": cli("key", "create", "k", *_scopes(source, to)).out.strip()}
    ran = cli.any("move", source, to, env=dict(scopes))
    assert ran.code == 4 and "publish" in ran.err
    assert (cli.stats(source)["ready"], count(cli, to)) == (1, 0)


def _scopes(source: str, to: str) -> list[str]:
    scopes = (f"view:{source}", f"consume:{source}", f"view:{to}")
    return [word for scope in scopes for word in ("--scope", scope)]
