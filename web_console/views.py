"""The views of the console, in the order of its menu, each with its equivalent on the command line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from web_console.pages import (
    access,
    alerts,
    connections,
    dashboards,
    dead_letters,
    messages,
    overview,
    publish,
    queues,
    records,
    settings,
    usage,
)
from web_console.visit import Visit

Load = Callable[[Visit], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class View:
    name: str
    """Its name in the table of roles."""
    title: str
    path: str
    template: str
    load: Load
    cli: str
    """`{0}` is the first variable part of the path. A page whose queues are known only at run time sets its own."""
    is_live: bool = False
    in_menu: bool = False
    key: str = ""
    """`g` and then this key open the view."""


VIEWS: Final[tuple[View, ...]] = (
    View("overview", "Overview", "/console", "overview.html", overview.load, "pushq top", True, True, "o"),
    View(
        "queues",
        "Queues",
        "/console/queues",
        "queues.html",
        queues.load_list,
        "pushq queue list --json",
        True,
        True,
        "q",
    ),
    View(
        "queue", "Queue", "/console/queues/{queue}", "queue.html", queues.load_one, "pushq queue show {0} --json", True
    ),
    View(
        "messages",
        "Messages",
        "/console/queues/{queue}/messages",
        "messages.html",
        messages.load,
        "pushq queue peek {0} --json",
    ),
    View(
        "message",
        "Message",
        "/console/queues/{queue}/message",
        "message.html",
        messages.load_one,
        "pushq queue peek {0} --id ID --json",
    ),
    View(
        "dead letters",
        "Dead letters",
        "/console/queues/{queue}/dead",
        "dead.html",
        dead_letters.load,
        "pushq queue redrive {0} --json",
        True,
    ),
    View(
        "publish", "Publish", "/console/queues/{queue}/publish", "publish.html", publish.load, "pushq publish {0} BODY"
    ),
    View(
        "queue settings",
        "Queue settings",
        "/console/queues/{queue}/settings",
        "settings.html",
        settings.load,
        "pushq queue show {0} --json",
    ),
    View("alerts", "Alerts", "/console/alerts", "alerts.html", alerts.load, "pushq alert list --json", True, True, "a"),
    View(
        "alert history",
        "Alert history",
        "/console/alerts/history",
        "records.html",
        alerts.load_history,
        "pushq alert history --json",
    ),
    View("rules", "Alert rules", "/console/alerts/rules", "rules.html", alerts.load_rules, "pushq alert rules --json"),
    View(
        "receivers",
        "Alert receivers",
        "/console/alerts/receivers",
        "receivers.html",
        alerts.load_receivers,
        "pushq alert receivers --json",
    ),
    View(
        "silences",
        "Silences",
        "/console/alerts/silences",
        "silences.html",
        alerts.load_silences,
        "pushq alert silences --json",
    ),
    View(
        "dashboards",
        "Dashboards",
        "/console/dashboards",
        "dashboards.html",
        dashboards.load,
        "pushq top QUEUE…",
        in_menu=True,
        key="d",
    ),
    View(
        "dashboard",
        "Dashboard",
        "/console/dashboards/{name}",
        "dashboard.html",
        dashboards.load_one,
        "pushq top QUEUE…",
        is_live=True,
    ),
    View(
        "connections",
        "Connections",
        "/console/connections",
        "records.html",
        connections.load,
        "pushq connection list --json",
        True,
        True,
        "c",
    ),
    View(
        "node",
        "Node",
        "/console/node",
        "node.html",
        records.load_node,
        "pushq cluster status --json",
        True,
        True,
        "n",
    ),
    View(
        "tenants",
        "Tenants",
        "/console/tenants",
        "tenants.html",
        access.load_tenants,
        "pushq tenant list --json",
        False,
        True,
        "t",
    ),
    View("keys", "Keys", "/console/keys", "keys.html", access.load_keys, "pushq key list --json", False, True, "k"),
    View("usage", "Usage", "/console/usage", "usage.html", usage.load, "pushq usage show --json", True, True, "u"),
    View(
        "audit",
        "Audit",
        "/console/audit",
        "records.html",
        records.load_audit,
        "pushq usage audit --json",
        False,
        True,
        "l",
    ),
    View(
        "settings",
        "Settings",
        "/console/settings",
        "records.html",
        records.load_settings,
        "pushq config show --origin",
        False,
        True,
        "s",
    ),
    View(
        "help", "Keyboard and help", "/console/help", "help.html", records.load_help, "pushq --help", False, True, "h"
    ),
)
