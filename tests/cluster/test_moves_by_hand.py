"""A queue is moved to another cluster, or split over two, by the command line and by a plan, while it is in use."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from gateway.commands.exits import Exit
from tests.cluster.test_cluster import gateway, patient
from tests.cluster.test_several_clusters import HOSTS, PAIR
from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli, Ran
from tests.support.consumers import call
from tests.support.patience import eventually
from tests.support.prerequisites import require

pytestmark = pytest.mark.anyio

BACKLOG = 20
OPEN = 2**44
"""Numbers of a second cluster begin here."""
HELD = 3
MORE = 10
CONFIG = {"dedupe": "id", "visibility_timeout_ms": 600_000}
MODELS = {"leader_follower": PAIR, "independent_hosts": HOSTS}
"""Of the cluster where queues go; they come from one with leader and followers."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class World:
    """The clusters us, which is the home cluster, and eu behind one gateway."""

    def __init__(self, http: httpx2.AsyncClient, cli: Cli, folder: Path) -> None:
        self.http = http
        self._cli = cli
        self._folder = folder
        self._names = (f"q{number:03}" for number in itertools.count())

    async def cli(self, *arguments: str) -> Ran:
        return await anyio.to_thread.run_sync(lambda: self._cli.any("cluster", *arguments))

    async def done(self, *arguments: str) -> Any:
        ran = await self.cli(*arguments, "--json")
        assert ran.code == 0, ran
        return ran.json()

    async def apply(self, *arguments: str, **plan: Any) -> Ran:
        file = self._folder / "plan.json"
        file.write_text(json.dumps({"version": 1, **plan}))
        return await self.cli("apply-plan", str(file), *arguments)

    async def queue_of_us(self) -> str:
        """A new one that lies there."""
        while True:
            name = next(self._names)
            if (await call(self.http, "PUT", name, CONFIG))["cluster"] == "us":
                return name

    async def cluster_of(self, queue: str) -> str:
        return str((await call(self.http, "GET", queue))["cluster"])

    async def publish(self, queue: str, bodies: Iterable[str]) -> list[dict[str, Any]]:
        """Each under its body as its id."""
        messages = [{"body": body, "id": body} for body in bodies]
        found: list[dict[str, Any]] = (await call(self.http, "POST", f"{queue}/messages", {"messages": messages}))[
            "messages"
        ]
        assert not any("error" in one for one in found), found
        return found

    async def take(self, queue: str, count: int) -> list[dict[str, Any]]:
        body = {"max": count, "wait_ms": 2_000}
        found: list[dict[str, Any]] = (await call(self.http, "POST", f"{queue}/receive", body))["messages"]
        return found

    async def ack(self, queue: str, messages: Iterable[dict[str, Any]]) -> None:
        receipts = [one["receipt"] for one in messages]
        results = (await call(self.http, "POST", f"{queue}/ack", {"receipts": receipts}))["results"]
        assert all(one["ok"] for one in results), results

    async def rest_of(self, queue: str) -> list[str]:
        """What is delivered until nothing comes any more, each acked."""
        bodies: list[str] = []
        while came := await self.take(queue, 100):
            await self.ack(queue, came)
            bodies += [one["body"] for one in came]
        return bodies

    @asynccontextmanager
    async def published_to(self, queue: str) -> AsyncIterator[list[str]]:
        """One message after the other, and what was confirmed so far."""
        confirmed: list[str] = []

        async def produce() -> None:
            for number in itertools.count():
                await self.publish(queue, [body := f"during-{number}"])
                confirmed.append(body)
                await asyncio.sleep(0.02)

        producer = asyncio.create_task(produce())
        try:
            await eventually(lambda: len(confirmed) >= MORE, "it is published to", beside=[producer])
            yield confirmed
            enough = len(confirmed) + MORE
            await eventually(lambda: len(confirmed) >= enough, "publishes go on", beside=[producer])
        finally:
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)


@asynccontextmanager
async def opened(folder: Path, env: dict[str, str]) -> AsyncIterator[World]:
    run = anyio.to_thread.run_sync
    home = Backends(folder, ROLE, names="ab", env=PAIR)
    await run(home.__enter__)
    try:
        further = Backends(folder, ROLE, names="cd", env=env, beside=home)
        await run(further.__enter__)
        try:
            entry = {"name": "eu", "backends": [one.service for one in further.all]}
            named = {"PUSHQ_STORE__CLUSTER": "us", "PUSHQ_STORE__CLUSTERS": json.dumps([entry])}
            server = await run(lambda: gateway(home, folder / "g", env=named))
            try:
                async with patient(server) as http:

                    async def all_are_there() -> bool:
                        return (await http.get("/v1/usage")).status_code == 200  # a sum over all clusters

                    await eventually(all_are_there, "both clusters are there")
                    yield World(http, Cli(server), folder)
            finally:
                server.kill()
        finally:
            await run(lambda: further.__exit__(None, None, None))
    finally:
        await run(lambda: home.__exit__(None, None, None))


@pytest.mark.parametrize("model", MODELS)
async def test_a_queue_is_moved_while_it_is_in_use_and_nothing_is_lost_or_doubled(tmp_path: Path, model: str) -> None:
    async with opened(tmp_path, MODELS[model]) as world:
        queue = await world.queue_of_us()
        before = [f"before-{number}" for number in range(BACKLOG)]
        await world.publish(queue, before)
        held = await world.take(queue, HELD)
        assert len(held) == HELD

        async with world.published_to(queue) as confirmed:
            place = await world.done("move", queue, "--to", "eu")
        assert (place["cluster"], await world.cluster_of(queue)) == ("eu", "eu")
        [listed] = (await world.done("moves"))["items"]
        assert (listed["queue"], listed["from"], listed["to"], listed["state"]) == (queue, "us", "eu", "draining")
        again = await world.cli("move", queue, "--to", "eu")
        assert (again.code, "is already in eu" in again.err) == (0, True), again
        late = await world.cli("move", queue, "--give-up")
        assert late.code == Exit.FAILED, late

        assert all(one["duplicate"] for one in await world.publish(queue, before[-HELD:]))
        after = ["after-0", "after-1"]
        assert not any(one["duplicate"] for one in await world.publish(queue, after))
        await world.ack(queue, held)
        delivered = Counter([*(one["body"] for one in held), *await world.rest_of(queue)])
        # What was on its way when the producer ended may have been stored.
        unsure = {f"during-{len(confirmed)}"}
        assert set(delivered) - unsure == {*before, *confirmed, *after}
        assert set(delivered.values()) == {1}, delivered

        async def is_drained() -> bool:
            moves = (await world.done("moves"))["items"]
            return [one["state"] for one in moves] in ([], ["remembering"])

        await eventually(is_drained, "the old cluster has nothing left")


async def test_a_plan_is_refused_whole_or_carried_out_and_may_be_run_again(tmp_path: Path) -> None:
    async with opened(tmp_path, PAIR) as world:
        one, two, wider = [await world.queue_of_us() for _ in range(3)]
        good = [{"queue": name, "from": "us", "to": "eu"} for name in (one, two)]
        stays = {"queue": wider, "partitions": 2, "clusters": ["us"]}
        wrong: dict[str, dict[str, Any]] = {
            "moves[1].partition is 0": {"moves": [good[0], {**good[1], "partition": 0}]},
            "unknown cluster 'asia'": {"moves": [good[0], {**good[1], "to": "asia"}]},
            "no queue 'none'": {"moves": [good[0], {**good[1], "queue": "none"}]},
            "tenant 'acme' has no queue": {
                "moves": good,
                "partitions": [{**stays, "tenant": "acme", "clusters": ["us", "eu"]}],
            },
            "partitions[0].clusters[0] is 'eu'": {"moves": good, "partitions": [{**stays, "clusters": ["eu"]}]},
        }
        for said, plan in wrong.items():
            refused = await world.apply("--yes", **plan)
            assert refused.code == Exit.FAILED and said in refused.err, refused
        assert (await world.done("moves"))["items"] == []

        asked = await world.apply(moves=good, partitions=[stays])
        assert asked.code == Exit.FAILED and "not confirmed" in asked.err, asked
        shown = await world.apply("--dry-run", moves=good, partitions=[stays])
        assert shown.code == 0 and shown.out.count("to do") == 3, shown
        await world.publish(one, bodies := [f"{number}" for number in range(BACKLOG)])
        await world.done("move", two, "--to", "eu")
        applied = await world.apply("--yes", "--json", moves=good, partitions=[stays])
        assert applied.code == 0, applied
        states = {row["queue"]: row["state"] for row in applied.json()["items"]}
        assert states == {one: "done", two: "passed_over", wider: "done"}
        assert [await world.cluster_of(name) for name in (one, two, wider)] == ["eu", "eu", "us"]
        assert (await call(world.http, "GET", wider))["config"]["partitions"] == 2
        again = await world.apply("--yes", moves=good, partitions=[stays])
        assert again.code == 0 and again.out.count("passed over") == 3, again
        await world.publish(one, more := [f"more-{number}" for number in range(MORE)])
        assert sorted(await world.rest_of(one)) == sorted([*bodies, *more])


async def test_a_queue_is_split_and_merged_while_it_is_in_use_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async with opened(tmp_path, PAIR) as world:
        queue = await world.queue_of_us()
        before = [f"before-{number}" for number in range(BACKLOG)]
        await world.publish(queue, before)
        held = await world.take(queue, HELD)

        async with world.published_to(queue) as confirmed:
            place = await world.done("split", queue, "--over", "us", "--over", "eu")
            halves = [{"cluster": "us", "share": 0.5}, {"cluster": "eu", "share": 0.5}]
            assert (place["clusters"], place["goal"]) == (halves, [])
            again = await world.cli("split", queue, "--over", "eu", "--over", "us")
            assert (again.code, "already" in again.err) == (0, True), again
            assert all(one["duplicate"] for one in await world.publish(queue, before))
            parts = {one["seq"] >= OPEN for one in await world.publish(queue, [f"after-{n}" for n in range(BACKLOG)])}
            assert parts == {False, True}, "both clusters take some"
            merged = await world.done("move", queue, "--to", "us")
            assert merged["clusters"] == [{"cluster": "us", "share": 1.0}]
        await world.ack(queue, held)
        delivered = Counter([*(one["body"] for one in held), *await world.rest_of(queue)])
        unsure = {f"during-{len(confirmed)}"}
        assert set(delivered) - unsure == {*before, *confirmed, *(f"after-{number}" for number in range(BACKLOG))}
        assert set(delivered.values()) == {1}, delivered


async def test_a_plan_splits_a_queue_and_may_be_run_again(tmp_path: Path) -> None:
    async with opened(tmp_path, PAIR) as world:
        queue = await world.queue_of_us()
        entry = {"queue": queue, "partitions": 4, "clusters": ["us", "eu"]}
        await world.publish(queue, bodies := [f"{number}" for number in range(BACKLOG)])
        shown = await world.apply("--dry-run", partitions=[entry])
        assert shown.code == 0 and shown.out.count("to do") == 1, shown
        applied = await world.apply("--yes", "--json", partitions=[entry])
        assert applied.code == 0, applied
        assert [row["state"] for row in applied.json()["items"]] == ["done"]
        place = (await world.http.get(f"/v1/cluster/queues/default/{queue}")).json()
        assert {one["cluster"]: one["share"] for one in place["clusters"]} == {"us": 0.5, "eu": 0.5}
        assert (await call(world.http, "GET", queue))["config"]["partitions"] == 2, "in each of them"
        again = await world.apply("--yes", partitions=[entry])
        assert again.code == 0 and again.out.count("passed over") == 1, again
        await world.publish(queue, more := [f"more-{number}" for number in range(MORE)])
        assert sorted(await world.rest_of(queue)) == sorted([*bodies, *more])
