"""The audit of a gateway without messages of its own: no act without a row, and no act undone by its row."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from backend_store.model import OutcomeUnknown, PushqError, Unavailable
from backend_store.remote.definitions.audit import RemoteAudit
from backend_store.remote.queues.answers import Known
from backend_store.service.acts import ForgetAct, PutAct

pytestmark = pytest.mark.anyio


class Backend:
    """Answers a row with the place 7, unless it is to fail."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, bool]] = []
        self.error: PushqError | None = None

    async def __call__(self, operation: Any, *, may_repeat: bool = False) -> msgspec.Raw:
        self.asked.append((operation, may_repeat))
        if self.error is not None:
            raise self.error
        return msgspec.Raw(msgspec.msgpack.encode(7))


@pytest.fixture
async def backend() -> Backend:
    return Backend()


@pytest.fixture
async def audit(backend: Backend) -> RemoteAudit:
    return RemoteAudit(backend, Known(_never, _nowhere))


def _never(*_: object) -> PushqError:
    raise AssertionError("nothing is looked up")


def _nowhere(work: Coroutine[Any, Any, None]) -> Any:
    raise AssertionError("nothing runs in the background")


async def test_an_acts_end_is_written_where_its_beginning_is(backend: Backend, audit: RemoteAudit) -> None:
    seq = audit.begin()
    await audit.put(seq, b"begun", has_ended=False)
    await audit.put(seq, b"ended", has_ended=True)
    assert backend.asked == [(PutAct(None, b"begun", False), False), (PutAct(7, b"ended", True), True)]


@pytest.mark.parametrize("error", [OutcomeUnknown("the backend was lost"), Unavailable("nobody leads")])
async def test_an_act_whose_row_is_in_doubt_is_not_begun(
    backend: Backend, audit: RemoteAudit, error: PushqError
) -> None:
    backend.error = error
    with pytest.raises(Unavailable):
        await audit.put(audit.begin(), b"begun", has_ended=False)


async def test_what_is_done_stays_done_when_its_outcome_cannot_be_written(backend: Backend, audit: RemoteAudit) -> None:
    for number in range(2):
        seq = audit.begin()
        backend.error = None
        await audit.put(seq, b"begun", has_ended=False)
        backend.error = Unavailable("nobody leads")
        await (audit.put(seq, b"ended", has_ended=True) if number else audit.forget(seq))
    assert [(asked, repeats) for asked, repeats in backend.asked if repeats] == [
        (ForgetAct(7), True),
        (PutAct(7, b"ended", True), True),
    ]
