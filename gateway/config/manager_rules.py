"""Checks the settings `manager.*`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from gateway.config.addresses import is_loopback_host, wrong_address
from gateway.config.settings import ManagerSettings

MANAGER_RANGES: Final[dict[str, tuple[int, int]]] = {
    "manager.look_s": (1, 10),
    "manager.provisioner_timeout_s": (1, 3_600),
    "manager.nodes_min": (1, 1_000),
    "manager.nodes_max": (1, 1_000),
    "manager.grow_after_s": (0, 86_400),
    "manager.shrink_after_s": (0, 604_800),
    "manager.pause_s": (0, 86_400),
}


def is_url(provisioner: str) -> bool:
    return "://" in provisioner.split(maxsplit=1)[0]


def _wrong_provisioner(text: str) -> str:
    if not text.strip():
        return "" if not text else "must be a program, or a URL"
    if not is_url(text):
        try:
            return "" if shlex.split(text) else "must name a program"
        except ValueError as error:
            return f"not a valid command: {str(error).lower()}"
    try:
        parts = urlsplit(text)
        is_good = bool(parts.hostname) and parts.port != 0 and not parts.username and " " not in text
    except ValueError:
        is_good = False
    if not is_good:
        return "must be a command, or https://HOST/PATH with its token in manager.provisioner_token_file"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(parts.hostname or "")):
        return ""
    return "a web service on another machine requires https"


MANAGER_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "manager.listen": wrong_address,
    "manager.provisioner": _wrong_provisioner,
}
"""Setting → function that returns what is wrong with a value; "" if it is valid."""


def wrong_manager(manager: ManagerSettings) -> tuple[str, str] | None:
    """The setting that conflicts with others, and a message; None if there is none."""
    if manager.nodes_min > manager.nodes_max:
        return "manager.nodes_min", (
            f"manager.nodes_min is {manager.nodes_min}, but manager.nodes_max is {manager.nodes_max}; nodes_min "
            "must not be larger"
        )
    if manager.provisioner_token_file and not (manager.provisioner and is_url(manager.provisioner)):
        return "manager.provisioner_token_file", (
            "manager.provisioner_token_file applies only when manager.provisioner is a URL; remove it"
        )
    return None


def shown_provisioner(text: str) -> str:
    """The provisioner with arguments and paths masked, as they may contain secrets."""
    if not text.strip():
        return text
    if is_url(text):
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.hostname}/***"
    program, *arguments = text.split(maxsplit=1)
    return f"{program} ***" if arguments else program
