"""Every limit of the Python client for the reference page: value and docstring from the code, or a text from here."""

from __future__ import annotations

import ast
import inspect

import msgspec

from push.client.config import Limits
from tests.support.reference_limits import docstring_of, shown_value

SENTENCES = {
    "publish_frame_messages_max": "Messages of one publish frame.",
    "publish_frame_bytes_max": "A publish frame.",
    "publish_timeout_s": "How long a publish without a `timeout` is retried while its answer is missing.",
    "settle_frame_receipts_max": "Receipts of one ack, nack or extend.",
    "settle_frames_in_flight_max": "Such frames without an answer; beyond it receipts are collected for the next one.",
    "settle_timeout_s": "How long an ack or nack is retried while its answer is missing.",
    "subscription_credit": "Default `credit` of a subscription.",
    "handler_limit_s": "How long the lease of a message is extended after it was handed out.",
    "lease_extension_fraction": "A lease is extended once this fraction of it has passed.",
    "retry_cap_s": "The longest such wait.",
    "reply_credit": "`credit` of the reply queue.",
    "open_timeout_s": "How long `connect` tries.",
    "close_timeout_s": "How long closing waits for unconfirmed messages, and `run` for cancelled handlers.",
    "backoff_base_s": "The longest wait before the first reconnect; it doubles with each further one.",
    "backoff_cap_s": "The longest wait before a reconnect, in addition to what the server asks for.",
    "silence_grace_s": "A server that is silent for two pings and this time counts as gone.",
    "frame_bytes_max": "A frame from the server, or an event of an SSE stream.",
    "poll_wait_ms": "`wait_ms` of a poll.",
    "poll_messages_max": "Messages of one poll.",
    "http_timeout_s": "How long an HTTP request may take, in addition to the time that it waits for messages.",
}
"""For limits that have no docstring."""


def client_limits() -> list[str]:
    """The table. Raises `LookupError` for a limit without a sentence."""
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
