"""Explains Spark's error messages in a sentence that says what to do. Unknown errors are better shown in full."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE\.\w+\][^\n]*? file (?:file:(?://)?)?(/[^\n]*?\.gz)\b")
_KNOWN: Final = {
    "No space left on device": "the disk of --to or of spark.local.dir is full; nothing of this run was saved: free "
    "some space and run it again",
    "Java heap space": "Spark has too little memory; run it again with more, such as --memory 8g",
    "GC overhead limit exceeded": "Spark has too little memory; run it again with more, such as --memory 8g",
}


def reason(message: str) -> str | None:
    """The explanation of Spark's message; None for an unknown error."""
    if (unreadable := _UNREADABLE.search(message)) is not None:
        return f"{unquote(unreadable[1])}: truncated or damaged; remove it and collect it again from its server"
    return next((why for words, why in _KNOWN.items() if words in message), None)
