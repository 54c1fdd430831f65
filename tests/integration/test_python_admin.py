"""`Admin`, the HTTP API as methods, against the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from push.client import Admin, ApiError, Forbidden, NotFound, Unauthenticated, Unavailable
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


async def test_a_queue_is_made_once_and_found_afterwards(admin: Admin) -> None:
    made = await admin.create_queue("made", {"visibility_timeout_ms": 3_000})
    again = await admin.create_queue("made", {"visibility_timeout_ms": 3_000})
    assert made["name"] == again["name"] == "made" and again["config"]["visibility_timeout_ms"] == 3_000
    with pytest.raises(ApiError) as caught:
        await admin.create_queue("made", {"visibility_timeout_ms": 4_000})
    assert (caught.value.code, caught.value.status) == ("conflict", 409)


async def test_every_queue_is_listed_page_after_page(admin: Admin) -> None:
    names = {f"listed-{n}" for n in range(5)}
    for name in names:
        await admin.create_queue(name)
    assert names <= {queue["name"] async for queue in admin.each_queue()}
    page = await admin.list_queues(limit=2)
    assert len(page["items"]) == 2 and page["next"] is not None


async def test_a_change_is_safe_against_anothers(admin: Admin) -> None:
    await admin.create_queue("changed")
    _, stale = await admin.get_queue_etag("changed")
    changed = await admin.update_queue("changed", {"visibility_timeout_ms": 5_000})
    assert changed["config"]["visibility_timeout_ms"] == 5_000
    with pytest.raises(ApiError) as caught:
        await admin.update_queue("changed", {"visibility_timeout_ms": 6_000}, etag=stale)
    assert caught.value.code == "precondition-failed"


async def test_messages_are_published_peeked_received_and_settled(admin: Admin) -> None:
    await admin.create_queue("handled")
    await admin.publish("handled", [{"body": 1, "key": "a"}, {"body": 2}])
    await admin.publish_raw("handled", b"\x00raw", content_type="application/x-thing")
    peeked = await admin.peek("handled", key="a")
    assert [item["body"] for item in peeked["items"]] == [1] and peeked["items"][0].get("receipt") is None
    received = await admin.receive("handled", max=10)
    assert [message.get("body") for message in received] == [1, 2, None]
    receipts = [message["receipt"] for message in received]
    extended = await admin.extend("handled", receipts, visibility_timeout_ms=60_000)
    assert [result["ok"] for result in extended] == [True, True, True]
    assert (await admin.ack("handled", receipts[:2]))[0]["ok"]
    assert (await admin.nack("handled", receipts[2:], reason="not now"))[0]["ok"]
    assert not (await admin.ack("handled", ["forged"]))[0]["ok"]
    assert [message["attempt"] for message in await admin.receive("handled", wait_ms=2_000)] == [2]


async def test_a_purge_empties_a_queue(admin: Admin) -> None:
    await admin.create_queue("purged")
    await admin.publish("purged", [{"body": n} for n in range(20)])
    job = await admin.purge_queue("purged")
    assert (await admin.get_purge("purged", job["id"]))["id"] == job["id"]
    assert (await admin.get_queue("purged"))["stats"]["ready"] == 0


async def test_a_key_may_do_what_its_scopes_say(admin: Admin, shared_server: PushqServer) -> None:
    await admin.create_queue("scoped")
    made = await admin.create_key("reader", ["view:scoped"])
    async with Admin(shared_server.url, made["key"]) as reader:
        assert (await reader.get_queue("scoped"))["name"] == "scoped"
        with pytest.raises(Forbidden):
            await reader.publish("scoped", [{"body": 1}])
        assert made["id"] in {key["id"] for key in (await admin.list_keys())["items"]}
        await admin.delete_key(made["id"])
        with pytest.raises(Unauthenticated):
            await reader.get_queue("scoped")


async def test_what_is_absent_is_not_found(admin: Admin) -> None:
    with pytest.raises(NotFound):
        await admin.get_queue("nowhere")


async def test_deleting_over_http_names_the_command_that_may(admin: Admin) -> None:
    await admin.create_queue("kept")
    with pytest.raises(Forbidden, match="pushq queue delete"):
        await admin.delete_queue("kept", discard=True)


async def test_the_socket_in_the_data_folder_may_delete(admin: Admin, shared_server: PushqServer) -> None:
    await admin.create_queue("doomed")
    async with Admin(key=shared_server.key, unix_socket=shared_server.data / "admin.sock") as local:
        await local.delete_queue("doomed", discard=True)
    with pytest.raises(NotFound):
        await admin.get_queue("doomed")


async def test_nobody_listening_is_unavailable(free_port: int) -> None:
    async with Admin(f"http://127.0.0.1:{free_port}", "k") as nobody:
        with pytest.raises(Unavailable):
            await nobody.get_queue("q")
