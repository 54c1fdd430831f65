"""The files of `deploy/` that run a whole cluster: their settings and commands, and that they work together."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend_store.shard.limits import DRAIN_SECONDS_MAX
from gateway.config.load import ConfigError
from gateway.dev_ca import create
from tests.support.composed import Composed
from tests.support.deployed import DEPLOY, ROOT, unit
from tests.support.pods import Told, command_of, expanded, settings_of, told_in_compose, told_in_kubernetes
from tests.support.prerequisites import require

CLUSTER = DEPLOY / "container" / "cluster.yaml"
HAPROXY = DEPLOY / "container" / "haproxy.cfg"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HOW_TO = ROOT / "docs" / "how-to" / "run-on-kubernetes.md"
INSTANCE = "a"
CREDENTIALS = "/run/credentials/unit"


@functools.cache
def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "cluster.yaml").read_text()))


def manifest(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in manifests() if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(kind, name)["spec"]["template"]["spec"]
    return found


def composed(path: Path = CLUSTER) -> subprocess.CompletedProcess[str]:
    command = [require("docker-compose"), "--file", str(path), "config"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    ran = composed()
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = yaml.safe_load(ran.stdout)
    return found


# Settings and commands


def told_by_units() -> list[Told]:
    found = []
    for path in UNITS:
        text = path.read_text()
        drop_in = path.with_name(f"{path.name}.d") / "cluster.conf"
        if drop_in.exists():
            text += drop_in.read_text()
        text = text.replace("%i", INSTANCE).replace("%d", CREDENTIALS)
        settings = unit(text)
        env = dict(each.split("=", 1) for each in settings.get("Environment", []))
        env |= example_env(settings.get("EnvironmentFile", []))
        [line] = settings["ExecStart"]
        words = line.split()
        assert words[0] == "/opt/pushq/bin/pushq"
        found.append(Told(path.name, words[1:], env))
    return found


def example_env(files: list[str]) -> dict[str, str]:
    """What the page on systemd has for these files."""
    page = (ROOT / "docs" / "how-to" / "run-under-systemd.md").read_text()
    found: dict[str, str] = {}
    for block in re.findall(r"```ini\n(.*?)```", page, re.DOTALL):
        title, _, lines = block.partition("\n")
        if title.removeprefix("# ") in [file.removeprefix("-") for file in files]:
            found |= dict(line.split("=", 1) for line in lines.splitlines() if line)
    return found


def test_every_unit_has_a_command_and_settings_that_are_taken() -> None:
    for told in told_by_units():
        assert (
            command_of(told.arguments)
            == {
                "pushq.service": "serve",
                "pushq-metadata.service": "metadata",
                "pushq-backend@.service": "backend",
                "pushq-manager.service": "manager",
            }[told.name]
        )
        settings = settings_of(told.env)
        if told.name == "pushq-backend@.service":
            assert settings.node.tls_key == f"{CREDENTIALS}/tls.key"
            assert not settings.cluster.coordinator.startswith("embedded")
        if told.name in ("pushq.service", "pushq-manager.service"):
            assert len(settings.store.backends) == 3
            assert settings.store.tls_ca == f"{CREDENTIALS}/ca.crt"


def test_every_pod_has_a_command_and_settings_that_are_taken() -> None:
    found = {told.name: told for told in told_in_kubernetes(manifests())}
    commands = {name: command_of(told.arguments) for name, told in found.items()}
    assert commands == {"pushq-backend-0": "backend", "pushq-gateway-0": "serve", "pushq-manager-0": "manager"}
    settings = {name: settings_of(told.env) for name, told in found.items()}
    backend, gateway = settings["pushq-backend-0"], settings["pushq-gateway-0"]
    assert gateway.store.backends[0] == backend.node.service
    assert len(gateway.store.backends) == manifest("StatefulSet", "pushq-backend")["spec"]["replicas"]
    assert gateway.cluster.coordinator == backend.cluster.coordinator
    assert settings["pushq-manager-0"].manager.name == "pushq-manager-0"


def test_every_service_has_a_command_and_settings_that_are_taken(compose: dict[str, Any]) -> None:
    found = list(told_in_compose(compose))
    assert sorted(command_of(told.arguments) for told in found) == ["backend"] * 3 + ["serve"] * 2
    settings = {told.name: settings_of(told.env) for told in found}
    backends = [settings[f"backend{number}"] for number in (1, 2, 3)]
    assert [each.node.service for each in backends] == list(settings["gateway1"].store.backends)
    assert len({each.node.zone for each in backends}) == 3


def test_a_wrong_command_and_a_wrong_setting_are_told() -> None:
    with pytest.raises(Exception, match="No such option"):
        command_of(["backend", "--nmae", "a"])
    with pytest.raises(Exception, match="No such command"):
        command_of(["backends"])
    with pytest.raises(ConfigError, match="node"):
        settings_of({"PUSHQ_NODE__NMAE": "a"})


# systemd


def test_a_backend_has_time_to_hand_over_and_its_keys_by_credential() -> None:
    settings = unit((DEPLOY / "systemd" / "pushq-backend@.service").read_text())
    assert float(settings["TimeoutStopSec"][0]) > 2 * DRAIN_SECONDS_MAX
    assert settings["ExecStart"][0].endswith("--name %i")
    assert {each.partition(":")[0] for each in settings["LoadCredential"]} == {"tls.crt", "tls.key", "ca.crt"}


# Kubernetes


def test_pods_are_spread_over_zones_and_never_all_taken_away() -> None:
    for kind, name in (
        ("StatefulSet", "pushq-etcd"),
        ("StatefulSet", "pushq-backend"),
        ("Deployment", "pushq-gateway"),
    ):
        spread = pod(kind, name)["topologySpreadConstraints"]
        assert "topology.kubernetes.io/zone" in {each["topologyKey"] for each in spread}
        budget = manifest("PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        labels = manifest(kind, name)["spec"]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
    for name in ("pushq-etcd", "pushq-backend"):
        apart = pod("StatefulSet", name)["affinity"]["podAntiAffinity"]
        [term] = apart["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"


def test_pods_have_time_to_leave() -> None:
    assert pod("StatefulSet", "pushq-backend")["terminationGracePeriodSeconds"] > 2 * DRAIN_SECONDS_MAX
    gateway = pod("Deployment", "pushq-gateway")
    sleeps = gateway["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert gateway["terminationGracePeriodSeconds"] > sleeps + 20


def test_selectors_of_services_and_policies_meet_pods() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in manifests()
        if each["kind"] in ("StatefulSet", "Deployment")
    ]

    def meets(selector: dict[str, str]) -> bool:
        return any(selector.items() <= each.items() for each in labels)

    for each in manifests():
        if each["kind"] == "Service":
            assert meets(each["spec"]["selector"]), each["metadata"]["name"]
        if each["kind"] == "NetworkPolicy" and each["spec"]["podSelector"]:
            assert meets(each["spec"]["podSelector"]["matchLabels"]), each["metadata"]["name"]
    assert manifest("StatefulSet", "pushq-backend")["spec"]["serviceName"] == "pushq-backends"
    assert manifest("HorizontalPodAutoscaler", "pushq-gateway")["spec"]["scaleTargetRef"]["name"] == "pushq-gateway"


def test_the_page_makes_a_certificate_for_every_name_that_is_asked_for() -> None:
    page = HOW_TO.read_text()
    made = {word for line in re.findall(r"pushq ca issue (.*)", page) for word in line.split()}
    made = {word.replace("$n", number) for word in made for number in "012"}
    for told in told_in_kubernetes(manifests()):
        settings = settings_of(told.env)
        if settings.node.name:
            assert settings.node.name in made
        for address in (settings.node.service, *settings.store.backends):
            host = address.rpartition(":")[0]
            assert host in made or host == "127.0.0.1", host
        for address in settings.cluster.coordinator.removeprefix("etcd://").split(","):
            assert address.rpartition(":")[0] in made
    secrets = set(re.findall(r"generic ([\w-]+)", page))
    volumes = [
        volume["secret"]["secretName"]
        for each in manifests()
        if each["kind"] in ("StatefulSet", "Deployment")
        for volume in each["spec"]["template"]["spec"].get("volumes", [])
        if "secret" in volume
    ]
    assert set(volumes) == secrets


def test_etcd_knows_its_options() -> None:
    [etcd] = pod("StatefulSet", "pushq-etcd")["containers"]
    said = subprocess.run([require("etcd"), "--help"], capture_output=True, text=True, check=True, timeout=30)
    known = set(re.findall(r"--[a-z-]+", said.stdout + said.stderr))
    assert {each.partition("=")[0] for each in etcd["args"]} <= known
    [cluster] = [each for each in etcd["args"] if each.startswith("--initial-cluster=")]
    for number in range(manifest("StatefulSet", "pushq-etcd")["spec"]["replicas"]):
        advertised = next(each for each in etcd["args"] if each.startswith("--initial-advertise-peer-urls="))
        url = expanded(advertised, {"POD_NAME": f"pushq-etcd-{number}"}).partition("=")[2]
        assert f"pushq-etcd-{number}={url}" in cluster


# Compose


def test_a_compose_file_with_a_mistake_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "cluster.yaml"
    wrong.write_text(CLUSTER.read_text().replace("stop_grace_period", "stop_grace_time"))
    assert composed(wrong).returncode != 0


def test_who_is_not_root_writes_to_a_volume_only_after_our_image_has_made_it_theirs(compose: dict[str, Any]) -> None:
    """Docker gives a new volume the owner of the folder it covers in its first container; elsewhere it is root's."""
    services = compose["services"]
    for name, service in services.items():
        volumes = [each.split(":") for each in service.get("volumes", [])]
        written = {source for source, _, mode in volumes if mode != "ro"}
        if service["image"].startswith("pushq:"):
            assert all(target == "/data" for source, target, _ in volumes if source in written), name
            continue
        done = [
            services[before]
            for before, how in service.get("depends_on", {}).items()
            if how["condition"] == "service_completed_successfully"
        ]
        assert all(each["image"].startswith("pushq:") for each in done)
        assert written <= {each.split(":")[0] for one in done for each in one["volumes"]}, name


def test_the_balancers_file_has_no_mistake_and_nothing_to_warn_of() -> None:
    ran = subprocess.run(
        [require("haproxy"), "-c", "-dW", "-f", str(HAPROXY)], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr


def test_what_the_compose_file_says_is_a_cluster_that_works(compose: dict[str, Any], tmp_path: Path) -> None:
    """Every service is a program on a host of its own: its names, certificates, addresses and health checks fit, and
    the probes for Kubernetes are pages that are there. A start before was cut short when it had made the authority."""
    create(tmp_path / "tls")
    with Composed(compose["services"], tmp_path) as cluster:
        for name, port, kind, pods in (
            ("backend1", 8091, "StatefulSet", "pushq-backend"),
            ("gateway1", 8080, "Deployment", "pushq-gateway"),
        ):
            [container] = pod(kind, pods)["containers"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                cluster.wait_for(name, f"http://{name}:{port}{container[probe]['httpGet']['path']}")
        cluster.wait_for("client", "http://172.30.89.10:8080/readyz")
        [key] = {path.read_text().strip() for path in tmp_path.glob("data-gateway*/admin.key")}
        curl = ["curl", "--silent", "--fail-with-body", "--retry", "20", "--retry-delay", "1", "--retry-all-errors"]
        curl += ["--header", f"Authorization: Bearer {key}"]
        url = "http://172.30.89.10:8080/v1/queues/orders"
        made = cluster.call(*curl, "--request", "PUT", "--json", "{}", url)
        assert made.returncode == 0, made.stdout
        sent = cluster.call(*curl, "--json", '{"messages": [{"id": "1", "body": "whole"}]}', f"{url}/messages")
        assert json.loads(sent.stdout)["durability"]["replicas"] == 3, sent.stdout
        got = cluster.call(*curl, "--json", '{"max": 1, "wait_ms": 5000}', f"{url}/receive")
        assert [each["body"] for each in json.loads(got.stdout)["messages"]] == ["whole"]
