"""What the containers of `deploy/` are given: their commands, and their settings as the real loader reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from gateway.cli import cli
from gateway.config.load import load_settings
from gateway.config.settings import Settings

POD_FIELDS = {"metadata.name": "{pod}", "spec.nodeName": "node-1"}


class Told(NamedTuple):
    """One Pushq container: the arguments of `pushq`, and its variables."""

    name: str
    arguments: list[str]
    env: dict[str, str]


def command_of(arguments: Sequence[str]) -> str:
    """The command found by the real command line, which rejects unknown arguments. It is not run."""
    group: click.Command = cli
    names: list[str] = []
    rest = list(arguments)
    context = click.Context(cli, info_name="pushq")
    while isinstance(group, click.Group):
        name, command, rest = group.resolve_command(context, rest)
        assert command is not None and name is not None
        names.append(name)
        context, group = click.Context(command, parent=context, info_name=name), command
    group.parse_args(context, list(rest))
    return " ".join(names)


def settings_of(env: Mapping[str, str]) -> Settings:
    """Raises `ConfigError` for settings that no role would accept."""
    return load_settings({}, env).settings


def told_in_kubernetes(manifests: Sequence[Mapping[str, Any]], pod: str = "{name}-0") -> Iterator[Told]:
    """Every container of the image `pushq`, as in the first pod of its set."""
    maps = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
    for each in manifests:
        if each["kind"] not in ("StatefulSet", "Deployment"):
            continue
        for container in each["spec"]["template"]["spec"]["containers"]:
            if not container["image"].startswith("pushq:"):
                continue
            name = pod.format(name=each["metadata"]["name"])
            env: dict[str, str] = {}
            for source in container.get("envFrom", []):
                env |= maps[source["configMapRef"]["name"]]
            for variable in container.get("env", []):
                if "value" in variable:
                    env[variable["name"]] = expanded(variable["value"], env)
                else:
                    env[variable["name"]] = POD_FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]].format(pod=name)
            yield Told(name, container["args"], env)


def told_in_compose(composed: Mapping[str, Any]) -> Iterator[Told]:
    """Every long-running service of the image `pushq`, as resolved by Compose."""
    for name, service in composed["services"].items():
        if service["image"].startswith("pushq:") and "entrypoint" not in service:
            yield Told(
                name, list(service["command"]), {key: str(value) for key, value in service["environment"].items()}
            )


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Expands `$(NAME)` as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], text)
