"""Explains Spark's error messages: a sentence with what to do. Unknown errors are better shown whole."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE\.\w+\][^\n]*? file (?:file:(?://)?)?(/[^\n]*?\.gz)\b")
_KNOWN: Final = {
    "No space left on device": "the disk is full where it writes, --to or Spark's spark.local.dir; nothing of this run "
    "counts: make room and run it again",
    "Java heap space": "Spark has too little memory; run it again with more, such as --memory 8g",
    "GC overhead limit exceeded": "Spark has too little memory; run it again with more, such as --memory 8g",
}


def reason(said: str) -> str | None:
    """The explanation of Spark's text; None for an unknown error."""
    if (unreadable := _UNREADABLE.search(said)) is not None:
        return f"{unquote(unreadable[1])}: it is not whole; remove it and collect it again from where it was written"
    return next((why for words, why in _KNOWN.items() if words in said), None)
