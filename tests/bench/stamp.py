"""Which server a run measured, and when: its commit, the date, and whether its queues are encrypted."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backend_store.model import QueueConfig
from tests.bench.world import ROOT

COMMIT_CHARS = 12
_QUEUES = {
    True: "queues encrypted at rest",
    False: "nothing encrypted at rest",
    None: "unknown whether encrypted at rest",
}


def stamp() -> dict[str, str | bool | None]:
    """The stamp of a run that starts now. `commit` is None outside a repository; `is_changed`: files differ from it."""
    commit = _git("rev-parse", f"--short={COMMIT_CHARS}", "HEAD")
    return {
        "commit": commit,
        "is_changed": bool(commit and _git("status", "--porcelain", "--untracked-files=no")),
        "date": datetime.now(UTC).date().isoformat(),
        "encrypted": QueueConfig().encrypted,
    }


def says(machine: Mapping[str, Any], *, has_duties: bool) -> str:
    """The stamp as a sentence. Scenarios of duties mention encryption where they use it; all others use the default."""
    queues = _QUEUES[machine.get("encrypted")]
    duties = ", in the `duty-…` scenarios only where stated" if has_duties else ""
    return f"{says_when(machine)}, {queues}{duties}."


def says_when(machine: Mapping[str, Any]) -> str:
    """The date and the commit, as the beginning of a sentence."""
    commit = f"commit `{machine['commit']}`" if machine.get("commit") else "no known commit"
    changed = " with changes" if machine.get("is_changed") else ""
    return f"Measured on {machine.get('date', 'an unknown day')} at {commit}{changed}"


def _git(*words: str) -> str | None:
    try:
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
