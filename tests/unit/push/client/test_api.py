"""One call of the HTTP API: what is an answer of ours, and what is somebody else's."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from push.client import Admin, ApiError, OutcomeUnknown

pytestmark = pytest.mark.anyio

PAGE = {"Content-Type": "text/html; charset=utf-8"}


def answered(status: int, **answer: Any) -> Admin:
    """A client of a server that has this one answer."""
    admin = Admin("http://user:secret@pushq", "key")
    admin._http = httpx2.AsyncClient(
        base_url="http://pushq", transport=httpx2.MockTransport(lambda request: httpx2.Response(status, **answer))
    )
    return admin


async def test_a_redirect_is_no_answer_and_its_goal_is_named() -> None:
    async with answered(302, headers={"Location": "https://login.example/?next=secret"}) as admin:
        for call in (admin.get_queue("q"), admin.create_queue("q"), admin.delete_key("k")):
            with pytest.raises(ApiError, match=r"pushq redirects to https://login\.example/") as caught:
                await call
            assert (caught.value.code, "secret" in str(caught.value)) == ("not-pushq", False)


async def test_a_page_in_place_of_an_answer_is_none() -> None:
    async with answered(200, headers=PAGE, content=b"<html>sign in</html>") as admin:
        for call in (admin.get_queue("q"), admin.create_queue("q"), admin.delete_key("k")):
            with pytest.raises(ApiError, match="not-pushq: http://pushq is not a Pushq server"):
                await call


async def test_an_answer_that_cannot_be_unpacked_leaves_the_outcome_open() -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with answered(200, headers=headers, stream=httpx2.ByteStream(b"no gzip")) as admin:
        with pytest.raises(OutcomeUnknown, match="decompress"):
            await admin.get_queue("q")


async def test_what_would_be_the_address_of_something_else_is_refused_unsent() -> None:
    async with answered(204) as admin:
        for call in (
            admin.get_queue(".."),
            admin.delete_queue("orders/messages"),
            admin.purge_queue("."),
            admin.delete_group("orders", ".."),
            admin.delete_key("."),
            admin.delete_key(""),
        ):
            with pytest.raises(
                ApiError, match=r"^invalid-request: .*(invalid queue name|cannot be part of a URL path)"
            ):
                await call


async def test_a_deletion_has_no_body() -> None:
    async with answered(204) as admin:
        await admin.delete_key("k")
