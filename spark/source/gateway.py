"""An HTTP client of a gateway that uses only the standard library: executors need no other code of ours.

Requests that may be repeated are retried, with growing pauses, for `retrySeconds`. Raises `Refused` if the gateway
refuses a request, `Unreachable` if no gateway answered in time.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from spark.source.errors import Refused, Unreachable, WrongOption
from spark.source.limits import ANSWER_BYTES_MAX, REQUEST_SECONDS_MAX, RETRY_PAUSE_SECONDS_MAX
from spark.source.offsets import Layout, layout_of

_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_OPEN: Final = frozenset({500, 502, 504})
_FIXES: Final = {
    401: ("token", "the gateway does not know this key; create one with `pushq key create`"),
    403: ("token", "the key lacks the permission for this"),
    404: ("queue", "this key's tenant has no queue of that name; create it with `pushq queue create`"),
}


class Patience:
    """Retries of one operation: with growing pauses, until its time is up."""

    def __init__(self, where: str, retry_s: float) -> None:
        self._where = where
        self._retry_s = retry_s
        self._over = time.monotonic() + retry_s
        self._pause = 0.05

    def wait(self, problem: str, retry_after_s: float) -> None:
        """Waits before the next attempt. Raises `Unreachable` when the time is up."""
        left = self._over - time.monotonic()
        if left <= 0:
            raise Unreachable(
                f'{self._where}: {problem}; gave up after {self._retry_s:g} s. Check option "url" and that the '
                'gateway is running, or raise option "retrySeconds" to wait longer'
            )
        time.sleep(min(max(left, 0.01), max(retry_after_s, self._pause * random.uniform(0.5, 1.0))))
        self._pause = min(self._pause * 2, RETRY_PAUSE_SECONDS_MAX)


class Gateway:
    """One connection, opened on first use. Not thread-safe."""

    def __init__(self, url: str, token: str, retry_s: float) -> None:
        self._parts = urlsplit(url)
        self._token = token
        self._retry_s = retry_s
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------------------- requests

    def layout(self, queue: str) -> Layout:
        """The first and the next offset of each partition."""
        return layout_of(json.loads(self.ask("GET", f"/v1/queues/{quote(queue, safe='')}/offsets")))

    def config(self, queue: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("GET", f"/v1/queues/{quote(queue, safe='')}"))["config"]
        return found

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        *,
        may_repeat: bool = True,
        patience: Patience | None = None,
    ) -> str:
        """Returns the body of the response. `may_repeat`: the request may be carried out twice; otherwise it is retried
        only if it was refused. Several requests that share a time limit share `patience`."""
        target = self._parts.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        patience = patience or Patience(self._where, self._retry_s)
        while True:
            try:
                status, text, retry_after = self._once(method, target, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not may_repeat:
                    raise Unreachable(f"{self._where}: {_described(error)}; it may have been carried out") from None
                problem, retry_after = _described(error), 0.0
            else:
                if status < 300:
                    return text
                refused = _refusal(status, text)
                if not _may_go_again(status, may_repeat=may_repeat):
                    raise refused
                problem = str(refused)
            patience.wait(problem, retry_after)

    def publish(self, queue: str, messages: Sequence[str], *, may_repeat: bool) -> list[dict[str, Any]]:
        """Returns the result of each message (a JSON text). A queue with several partitions may store some and refuse
        others: only the refused ones are sent again. Raises `Refused` if one is refused for good; others are stored."""
        path = f"/v1/queues/{quote(queue, safe='')}/messages"
        patience = Patience(self._where, self._retry_s)
        found: list[dict[str, Any]] = [{} for _ in messages]
        waiting = list(range(len(messages)))
        while True:
            body = f'{{"messages":[{",".join(messages[at] for at in waiting)}]}}'.encode()
            answer = json.loads(self.ask("POST", path, body=body, may_repeat=may_repeat, patience=patience))
            for at, row in zip(waiting, answer["messages"], strict=True):
                found[at] = row
            waiting = [at for at in waiting if found[at].get("error")]
            if not waiting:
                return found
            which = f"{len(waiting)} of {len(messages)} messages of a publish"
            problems = [found[at]["error"] for at in waiting]
            for problem in problems:
                if not _may_go_again(problem["status"], may_repeat=may_repeat):
                    raise Refused(f"{which}: {problem['detail']}", problem["status"], problem["code"])
            after_s = max(problem.get("retry_after_ms", 0) for problem in problems) / 1000
            patience.wait(f"{which}: {problems[0]['detail']} ({problems[0]['code']})", after_s)

    # ----------------------------------------------------------------------------------------------------- one trip

    @property
    def _where(self) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}"

    def _once(self, method: str, target: str, body: bytes | None) -> tuple[int, str, float]:
        connection = self._connection = self._connection or self._connected()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            self.close()
            raise Refused(f"a response is larger than {ANSWER_BYTES_MAX} bytes", 0, "too-large")
        if answer.length:  # a read with a size limit does not detect a connection that was closed early
            raise http.client.IncompleteRead(data, answer.length)
        after = answer.getheader("Retry-After", "0")
        return answer.status, data.decode(), float(after) if after.isdigit() else 0.0

    def _connected(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname, self._parts.port
        assert host is not None
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=REQUEST_SECONDS_MAX, context=context)
        return http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS_MAX)


def _may_go_again(status: int, *, may_repeat: bool) -> bool:
    """Whether a request may be sent again: some responses leave open whether it was carried out."""
    return status in _AGAIN and (may_repeat or status not in _OPEN)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _refusal(status: int, text: str) -> Refused | WrongOption:
    try:
        problem = json.loads(text)
        detail, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        detail, code = text[:200], "no-problem"
    if status in _FIXES and code in ("unauthenticated", "forbidden", "queue-not-found", "not-found"):
        option, fix = _FIXES[status]
        return WrongOption(option, f"{fix}: {detail}")
    return Refused(detail, status, code)
