"""How commands end: exit codes, and the translation of errors to a code and lines on stderr."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Sequence
from typing import IO, Any

import click


class Exit(enum.IntEnum):
    """Exit codes, which scripts may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_START = 3
    AUTH = 4
    UNAVAILABLE = 5
    NOT_FOUND = 6


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "refused or failed, and no other code applies",
    Exit.USAGE: "invalid command line",
    Exit.CANNOT_START: "the server cannot start: settings, data folder or address",
    Exit.AUTH: "the key is missing, unknown or lacks the scope",
    Exit.UNAVAILABLE: "the server is unreachable, or asks to retry later",
    Exit.NOT_FOUND: "the queue, group, key, tenant, message, context, cluster or the like does not exist",
}

EXIT_BY_CODE: dict[str, Exit] = {
    "unauthenticated": Exit.AUTH,
    "forbidden": Exit.AUTH,
    "not-found": Exit.NOT_FOUND,
    "queue-not-found": Exit.NOT_FOUND,
    "request-in-progress": Exit.UNAVAILABLE,
    "rate-limited": Exit.UNAVAILABLE,
    "too-many-connections": Exit.UNAVAILABLE,
    "not-leader": Exit.UNAVAILABLE,
    "unavailable": Exit.UNAVAILABLE,
    "overloaded": Exit.UNAVAILABLE,
    "draining": Exit.UNAVAILABLE,
    "not-durable": Exit.UNAVAILABLE,
    "outcome-unknown": Exit.UNAVAILABLE,
}
"""Exit codes by error code of the public protocol; others end with `FAILED`."""

OF_ANOTHER_SERVER = frozenset(
    {"unauthenticated", "not-found", "queue-not-found", "unavailable", "outcome-unknown", "not-pushq"}
)
"""Errors that a server other than the intended one returns: the failure then names the server."""

HINTS: dict[str, str] = {
    "unavailable": "start a server with `pushq serve`, or set --url or PUSHQ_URL",
    "outcome-unknown": "the request may have succeeded; to be safe, repeat a publish with the same --id",
}


NO_PROBLEM = "without a problem document"
"""The client's words for an answer that does not come from Pushq."""


class Failure(click.ClickException):
    """A command failed: a sentence, further lines, and an exit code."""

    def __init__(
        self,
        message: str,
        *,
        exit: Exit = Exit.FAILED,
        lines: Sequence[str] = (),
        problem: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = int(exit)  # type: ignore[misc]  # click reads it from the instance, too
        self.lines = tuple(lines)
        self.problem = problem or {"title": message, "code": exit.name.lower().replace("_", "-")}
        self.is_json = False

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the failure on stderr; under `--json` as one JSON object."""
        if self.is_json:
            click.echo(json.dumps(self.problem, ensure_ascii=False), file=file, err=True)
            return
        said = [click.style("pushq: ", fg="red") + self.message, *(f"  {line}" for line in self.lines)]
        click.echo("\n".join(said), file=file, err=True, color=self.show_color)


def translate(
    error: Exception, *, key_origin: str | None = None, asked: str | None = None, url_origin: str | None = None
) -> Failure | None:
    """The failure for an expected error; None for a bug, which keeps its traceback.

    `asked` is the server's URL, without secrets.
    """
    failure = _failure_of(error, key_origin)
    if failure is None or asked is None:
        return failure
    if failure.problem.get("code") in OF_ANOTHER_SERVER or failure.message.endswith(NO_PROBLEM):
        origin = f", from {url_origin}" if url_origin is not None else ""
        if asked not in failure.message:
            failure.lines += (f"the server was {asked}{origin}",)
        elif url_origin is not None:
            failure.lines += (f"the URL came from {url_origin}",)
    return failure


def _failure_of(error: Exception, key_origin: str | None) -> Failure | None:
    from backend_store.model import PushqError as ServerError
    from push.client.errors import ApiError, Unavailable
    from push.client.errors import PushqError as ClientError

    if isinstance(error, ApiError) or (isinstance(error, Unavailable) and error.problem is not None):
        return _refused(error.problem, key_origin)
    if isinstance(error, ClientError):
        return _plain(error.code, str(error))
    if isinstance(error, ServerError):
        detail, lines = _said_once(error.detail, error.errors)
        return _plain(error.code, detail or lines.pop(0), lines)
    if isinstance(error, OSError):
        return Failure(os_text(error))
    return None


def os_text(error: OSError) -> str:
    """What the system says, after the file that it is about."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if isinstance(error.filename, str) else reason


def _refused(problem: Any, key_origin: str | None) -> Failure:
    """The failure for a problem document: `title: detail`, a line per pointer, then code and trace id."""
    import msgspec

    title = problem.title
    detail, lines = _said_once(problem.detail, problem.errors)
    lines.append(f"code {problem.code}" + (f", trace {problem.trace_id}" if problem.trace_id else ""))
    if problem.retry_after_ms is not None:
        lines.append(f"retry in {math.ceil(problem.retry_after_ms / 100) / 10:g} s")
    if problem.code == "unauthenticated" and key_origin is not None:
        lines.append(f"the key came from {key_origin}")
    message = f"{title}: {detail}" if title and detail else title or detail or problem.code
    exit = EXIT_BY_CODE.get(problem.code, Exit.FAILED)
    return Failure(message, exit=exit, lines=lines, problem=msgspec.to_builtins(problem))


def _said_once(detail: str, errors: Sequence[Any]) -> tuple[str, list[str]]:
    """The sentence, and a line per pointer. The sentence omits what a line says, and may be empty."""
    lines = [f"{each.pointer or '/'}: {each.detail}" for each in errors]
    if detail in lines or any(detail == each.detail for each in errors):
        return "", lines
    for each in errors:
        detail = detail.removesuffix(f": {each.detail}")
    return detail, lines


def _plain(code: str, message: str, lines: Sequence[str] = ()) -> Failure:
    hint = HINTS.get(code)
    exit = EXIT_BY_CODE.get(code, Exit.FAILED)
    return Failure(
        message, exit=exit, lines=[*lines, *([hint] if hint else [])], problem={"detail": message, "code": code}
    )
