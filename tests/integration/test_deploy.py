"""The files of `deploy/`: each passes its own checker, its commands start what they should, and its names are known."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.config.settings import Limits
from tests.support.deployed import (
    DEPLOY,
    FILES,
    container,
    known_metrics,
    known_variables,
    metrics,
    unit,
    variables,
)
from tests.support.hosts import Host
from tests.support.prerequisites import require
from tests.support.running import Running, status
from tests.support.server import free_port

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
COMPOSE = DEPLOY / "container" / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
KUBERNETES_VERSION = "1.32"
DRAIN_S_MAX = max(10.0, Limits().drain_window_s + 6)
"""As docs/how-to/upgrade-and-drain.md has it."""
EXPOSURE_MAX = "20"
"""Tenths of systemd's scale from 0 (locked in) to 10 (free)."""
MIXED_UP = "readinesProbe"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def manifest(kind: str) -> dict[str, Any]:
    [found] = [each for each in manifests("pushq.yaml") if each["kind"] == kind]
    return found


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# Names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_and_series_in_a_file_is_a_known_one(path: Path) -> None:
    text = path.read_text()
    assert variables(text) - known_variables() == set()
    assert metrics(text) - known_metrics().keys() == set()


def test_series_are_asked_for_by_labels_that_they_have() -> None:
    known = known_metrics()
    queries = [each["metadata"]["query"] for each in manifests("consumers-keda.yaml")[0]["spec"]["triggers"]]
    for query in queries:
        [(series, labels)] = re.findall(r"(pushq_\w+)\{([^}]*)\}", query)
        assert set(re.findall(r"(\w+)=", labels)) <= known[series]
    for each in manifests("consumers-hpa.yaml")[0]["spec"]["metrics"]:
        asked = each["external"]["metric"]
        assert asked["selector"]["matchLabels"].keys() <= known[asked["name"]]


# systemd


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Host]:
    """Where the program lies as the units have it."""
    with Host("machine", tmp_path) as host:
        host.run("mount", "-t", "tmpfs", "tmpfs", "/opt")
        host.run("mkdir", "-p", "/opt/pushq/bin")
        host.run("cp", "/bin/true", "/opt/pushq/bin/pushq")
        yield host


def verified(machine: Host, path: Path) -> subprocess.CompletedProcess[str]:
    command = machine.command(require("systemd-analyze"), "verify", "--recursive-errors=yes", str(path))
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_units_have_no_mistake_and_one_that_has_is_told(machine: Host, tmp_path: Path) -> None:
    for path in UNITS:
        ran = verified(machine, path)
        assert (ran.returncode, ran.stderr) == (0, "")
    wrong = tmp_path / "wrong.service"
    wrong.write_text(UNITS[0].read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    assert verified(machine, wrong).returncode != 0


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_locked_in_and_stop_after_the_drain(path: Path) -> None:
    command = [require("systemd-analyze"), "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert ran.returncode == 0, ran.stdout
    settings = unit(path.read_text())
    assert settings["NoNewPrivileges"] == ["yes"] and settings["ProtectSystem"] == ["strict"]
    assert float(settings["TimeoutStopSec"][0]) > DRAIN_S_MAX
    # The program says when it is ready, and that it gets on.
    assert settings["Type"] == ["notify"] and float(settings["WatchdogSec"][0]) >= 30


def arguments_of(path: Path, folder: Path, port: int) -> list[str]:
    [line] = unit(path.read_text())["ExecStart"]
    words = line.split()
    assert words[0] == "/opt/pushq/bin/pushq"
    states = unit(path.read_text())["StateDirectory"]
    data, listen = words.index("--data") + 1, words.index("--listen") + 1
    assert words[data].startswith(f"/var/lib/{states[0]}/")
    words[data], words[listen] = str(folder / "data"), f"127.0.0.1:{port}"
    return words[1:]


def test_the_units_commands_start_a_server_and_a_metadata_service_that_it_uses(tmp_path: Path) -> None:
    meta, port, meta_port = tmp_path / "meta", free_port(), free_port()
    meta.mkdir()
    with Running(arguments_of(DEPLOY / "systemd" / "pushq-metadata.service", meta, meta_port), meta) as metadata:
        metadata.wait_for_word("ready\n")
        env = {
            "PUSHQ_METADATA__URL": f"ws://127.0.0.1:{meta_port}",
            "PUSHQ_METADATA__SECRET_FILE": str(meta / "data" / "metadata.secret"),
        }
        with Running(arguments_of(DEPLOY / "systemd" / "pushq.service", tmp_path, port), tmp_path, env) as server:
            server.wait_for(f"http://127.0.0.1:{port}/readyz")
            assert server.stop() == 0
        assert metadata.stop() == 0


# Containers


def test_the_container_has_named_bases_a_user_without_rights_and_a_command_that_serves(tmp_path: Path) -> None:
    said = container(CONTAINERFILE.read_text())
    assert all(re.fullmatch(r"docker\.io/library/python:3\.11-slim-\w+", base) for base in said.bases)
    assert len(said.bases) == 2
    assert said.user == "10001:10001"
    assert said.command[0] == "pushq" and said.health[0] == "python"
    port = free_port()
    env = {name: value for name, value in said.env.items() if name.startswith("PUSHQ_")}
    assert env["PUSHQ_HTTP__LISTEN"] == "0.0.0.0:8080"
    env |= {"PUSHQ_HTTP__LISTEN": f"127.0.0.1:{port}", "PUSHQ_DATA": str(tmp_path / "data")}
    health = [sys.executable, *(word.replace(":8080/", f":{port}/") for word in said.health[1:])]
    assert subprocess.run(health, capture_output=True, check=False, timeout=10).returncode != 0
    with Running(said.command[1:], tmp_path, env) as server:
        server.wait_for(f"http://127.0.0.1:{port}/readyz")
        assert subprocess.run(health, capture_output=True, check=False, timeout=10).returncode == 0


def test_the_build_sees_what_it_needs_and_no_data() -> None:
    lines = (DEPLOY / "container" / "Containerfile.dockerignore").read_text().splitlines()
    root = DEPLOY.parent
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert all((root / name).exists() for name in allowed)
    project = (root / "pyproject.toml").read_text()
    packages = set(re.findall(r'"(\w+)", "\1\.\*"', project))
    assert packages and packages | {"pyproject.toml", "README.md", "LICENSE", "deploy", "docs"} == allowed


def composed(path: Path) -> subprocess.CompletedProcess[str]:
    command = [require("docker-compose"), "--file", str(path), "config"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_compose_file_is_right_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    ran = composed(COMPOSE)
    assert ran.returncode == 0, ran.stderr
    service = yaml.safe_load(ran.stdout)["services"]["pushq"]
    assert seconds(service["stop_grace_period"]) > DRAIN_S_MAX
    assert (
        COMPOSE.parent / yaml.safe_load(COMPOSE.read_text())["services"]["pushq"]["build"]["context"]
    ).resolve() == (DEPLOY.parent)
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_time"))
    assert composed(wrong).returncode != 0


# Kubernetes


@pytest.mark.parametrize("name", ["pushq.yaml", "cluster.yaml", "consumers-hpa.yaml"])
def test_manifests_fit_the_schemas(name: str) -> None:
    for each in manifests(name):
        kubernetes_validate.validate(each, KUBERNETES_VERSION, strict=True)


def test_a_manifest_with_a_mistake_does_not_fit() -> None:
    wrong = copy.deepcopy(manifest("StatefulSet"))
    wrong["spec"]["template"]["spec"]["containers"][0][MIXED_UP] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match=MIXED_UP):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSION, strict=True)


def test_the_pod_starts_answers_its_probes_and_has_time_for_the_drain(tmp_path: Path) -> None:
    pod = manifest("StatefulSet")["spec"]["template"]["spec"]
    [server] = pod["containers"]
    assert manifest("StatefulSet")["spec"]["replicas"] == 1
    assert pod["terminationGracePeriodSeconds"] > server["lifecycle"]["preStop"]["sleep"]["seconds"] + DRAIN_S_MAX
    port = free_port()
    env = manifest("ConfigMap")["data"]
    assert env["PUSHQ_HTTP__LISTEN"].endswith(f":{server['ports'][0]['containerPort']}")
    assert any(env["PUSHQ_DATA"].startswith(each["mountPath"]) for each in server["volumeMounts"])
    env = env | {"PUSHQ_HTTP__LISTEN": f"127.0.0.1:{port}", "PUSHQ_DATA": str(tmp_path / "data")}
    with Running(server["args"], tmp_path, env) as running:
        running.wait_for(f"http://127.0.0.1:{port}/readyz")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert status(f"http://127.0.0.1:{port}{server[probe]['httpGet']['path']}") == 200
        scraped = pod_annotation("prometheus.io/path")
        assert status(f"http://127.0.0.1:{port}{scraped}") == 200
        assert running.stop() == 0


def pod_annotation(name: str) -> str:
    annotations: dict[str, str] = manifest("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    return annotations[name]


def test_selectors_and_names_meet() -> None:
    labels = manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    services = [each for each in manifests("pushq.yaml") if each["kind"] == "Service"]
    names = {each["metadata"]["name"] for each in services}
    assert manifest("StatefulSet")["spec"]["serviceName"] in names
    for each in services:
        assert each["spec"]["selector"].items() <= labels.items()
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels.items()
