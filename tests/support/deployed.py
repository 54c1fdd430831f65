"""Reads the files of `deploy/`: their commands, and the names in them that Pushq must know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
_VARIABLE = re.compile(r"\bPUSHQ_[A-Z0-9_]+")
_METRIC = re.compile(r"(?<!:)\bpushq_[a-z0-9_]+")
_CELL = re.compile(r"^\| `([^`]+)` \|(?: `([^`]+)` \|)?", re.MULTILINE)


def variables(text: str) -> set[str]:
    return set(_VARIABLE.findall(text))


def metrics(text: str) -> set[str]:
    """A server's metrics in a text. Names with colons are recording rules, and those in `cook()` are cookies."""
    return set(_METRIC.findall(re.sub(r"cook\([\w-]+\)", "", text)))


def known_variables() -> set[str]:
    """Variables of servers and clients, and those that the HAProxy file reads itself."""
    settings = variables((ROOT / "docs" / "reference" / "configuration.md").read_text())
    balancer = {row[0] for row in _CELL.findall((ROOT / "docs" / "how-to" / "tls.md").read_text())}
    return settings | {each for each in balancer if each.startswith("PUSHQ_")}


def known_metrics() -> dict[str, set[str]]:
    """Each metric with its labels, from the page generated from a server's response, plus those of the other roles."""
    found: dict[str, set[str]] = {}
    for page in ("reference/metrics.md", "how-to/run-backends.md", "how-to/manage-clusters.md"):
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) not in (2, 4) or not cells[0].startswith("`pushq_"):
                continue
            name, labels = cells[0].strip("`"), set(re.findall(r"`(\w+)`", cells[2])) if len(cells) == 4 else set()
            found.setdefault(name, labels)
            if cells[1] == "histogram":
                found |= {f"{name}_{part}": labels for part in ("bucket", "count", "sum")}
    return found


def unit(text: str) -> dict[str, list[str]]:
    """The settings of a systemd unit; one that occurs twice has two values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith(("#", ";")):
            found.setdefault(name, []).append(value)
    return found


class Container(NamedTuple):
    """A Containerfile: its base images, and the instructions of its last stage."""

    bases: list[str]
    env: dict[str, str]
    user: str
    command: list[str]
    health: list[str]


def container(text: str) -> Container:
    bases: list[str] = []
    env: dict[str, str] = {}
    last: dict[str, str] = {}
    for word, rest in _instructions(text):
        if word == "FROM":
            bases.append(rest.split()[0])
            env, last = {}, {}
        elif word == "ENV":
            env |= dict(each.split("=", 1) for each in rest.split())
        else:
            last[word] = rest
    health = last["HEALTHCHECK"]
    return Container(
        bases,
        env,
        last["USER"],
        json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"]),
        json.loads(health[health.index("CMD") + len("CMD") :]),
    )


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    for line in lines.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()
