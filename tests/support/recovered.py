"""Republishes what a cluster's backends keep in quarantine, as an operator does, until nothing is left there."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final

from tests.support.netted_cluster import Gateway, NettedCluster, within
from tests.support.patience import until

ANSWER_S_MAX: Final = 60.0


def recover(cluster: NettedCluster) -> int:
    """Returns how many messages were published; producers had sent the others again. Needs all backends."""
    gateway, published = cluster.gateways[0], 0

    def is_done() -> bool:
        nonlocal published
        found = _ask(gateway, "/v1/cluster/recovery")
        if "pieces" not in found or found["unreachable"]:
            return False
        for piece in found["pieces"]:
            done = _ask(gateway, f"/v1/cluster/recovery/{piece['name']}/publish", {})
            assert not done.get("in_doubt"), f"{piece} is in doubt although the whole log is on every disk: {done}"
            published += done.get("published", 0)
        return not found["pieces"]

    until(is_done, lambda: f"the quarantine is empty: {_ask(gateway, '/v1/cluster/recovery')}", look_s=0.5)
    return published


def _ask(gateway: Gateway, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = gateway.headers | {"Content-Type": "application/json"}

    def ask() -> dict[str, Any]:
        try:
            request = urllib.request.Request(gateway.url + path, data, headers)
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error))

    return within(gateway.host, ask)
