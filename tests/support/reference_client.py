"""Every bound of the Python client for the reference page: its value from the code, its sentence too or from here."""

from __future__ import annotations

import ast
import inspect

import msgspec

from push.client.config import Limits
from tests.support.reference_limits import docstring_of, shown_value

SENTENCES = {
    "publish_frame_messages_max": "Messages of one publish frame.",
    "publish_frame_bytes_max": "A publish frame.",
    "publish_timeout_s": "How long a publish that was given no time goes again, when its answer is missing.",
    "settle_frame_receipts_max": "Receipts of one ack, nack or extend.",
    "settle_frames_in_flight_max": "Such frames without an answer; beyond it receipts gather for the next.",
    "settle_timeout_s": "How long an ack or nack goes again, when its answer is missing.",
    "subscription_credit": "`credit` of a subscription that names none.",
    "handler_limit_s": "How long the lease of a message is extended after it was handed out.",
    "lease_extension_fraction": "A lease is extended when this part of it is over.",
    "retry_cap_s": "The longest such wait.",
    "reply_credit": "`credit` of the queue of replies.",
    "open_timeout_s": "How long `connect` tries.",
    "close_timeout_s": "How long closing waits for what is unconfirmed, and `run` for handlers that it cancelled.",
    "backoff_base_s": "The longest wait before the first reconnect, doubled with each that follows.",
    "backoff_cap_s": "The longest wait before a reconnect, beside what the server asks.",
    "silence_grace_s": "A server that is silent for two pings and this time is taken for gone.",
    "frame_bytes_max": "A frame from the server, and an event of a stream.",
    "poll_wait_ms": "`wait_ms` of a poll.",
    "poll_messages_max": "Messages of one poll.",
    "http_timeout_s": "How long a request over HTTP may take, beside what it waits for.",
}
"""Of those that have no docstring."""


def client_limits() -> list[str]:
    """The table. Raises `LookupError` for a bound without a sentence."""
    found = _docstrings()
    rows = ["| Limit | Value | What it bounds |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(Limits):
        text = found.get(field.name) or SENTENCES.get(field.name)
        if not text:
            raise LookupError(f"Limits.{field.name} has no sentence: write a docstring below it")
        rows.append(f"| `{field.name}` | {shown_value(field.name.upper(), field.default)} | {' '.join(text.split())} |")
    return rows


def _docstrings() -> dict[str, str]:
    (made,) = ast.parse(inspect.getsource(Limits)).body
    assert isinstance(made, ast.ClassDef)
    return {
        statement.target.id: docstring_of(following)
        for statement, following in zip(made.body, made.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
