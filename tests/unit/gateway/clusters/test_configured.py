"""The settings `store.cluster` and `store.clusters`: what they give, and what each mistake is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend_store.remote.cluster import ClusterAt
from gateway.clusters.backends import clusters_of
from gateway.clusters.configured import BackendsOf
from gateway.config.load import ConfigError, load_settings

HOME = "127.0.0.1:8092"
EU: dict[str, Any] = {"name": "eu", "backends": ["127.0.0.1:9092"]}
FILE = """
[store]
backends = ["127.0.0.1:8092"]
cluster = "us"

[[store.clusters]]
name = "eu"
backends = ["127.0.0.1:9092", "127.0.0.1:9192"]
coordinator = "etcd://127.0.0.1:2379/eu"

[[store.clusters]]
name = "asia"
backends = ["127.0.0.1:9292"]
"""


def refused(*entries: Any, **store: str) -> ConfigError:
    variables = {"PUSHQ_STORE__BACKENDS": HOME, "PUSHQ_STORE__CLUSTERS": json.dumps(list(entries))}
    variables.update({f"PUSHQ_{name}": value for name, value in store.items()})
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {name: value for name, value in variables.items() if value})
    return caught.value


def test_clusters_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pushq.toml"
    file.write_text(FILE)
    store = load_settings({}, {}, file).settings.store
    assert store.clusters == (
        BackendsOf("eu", ("127.0.0.1:9092", "127.0.0.1:9192"), "etcd://127.0.0.1:2379/eu"),
        BackendsOf("asia", ("127.0.0.1:9292",)),
    )
    assert [(at.name, at.addresses) for at in clusters_of(store)] == [
        ("us", [("127.0.0.1", 8092)]),
        ("eu", [("127.0.0.1", 9092), ("127.0.0.1", 9192)]),
        ("asia", [("127.0.0.1", 9292)]),
    ]
    assert all(isinstance(at, ClusterAt) for at in clusters_of(store))


def test_clusters_of_a_variable_are_json() -> None:
    settings = load_settings({}, {"PUSHQ_STORE__BACKENDS": HOME, "PUSHQ_STORE__CLUSTERS": json.dumps([EU])}).settings
    assert settings.store.clusters == (BackendsOf("eu", ("127.0.0.1:9092",)),)
    assert settings.store.cluster == "main"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"backends": ["127.0.0.1:1"]}], "store.clusters[0]: Object missing required field `name`"),
        ([{**EU, "backend": "x"}], "store.clusters[0]: Object contains unknown field `backend`"),
        ([{**EU, "backends": []}], "store.clusters[0].backends is empty"),
        ([{**EU, "backends": ["here"]}], "store.clusters[0].backends: 'here': must be HOST:PORT"),
        ([{**EU, "backends": ["127.0.0.1:0"]}], "the port must be above 0, because gateways must know it"),
        ([{**EU, "name": "EU"}], "store.clusters[0].name is 'EU': must be 1 to 31 characters from a-z"),
        ([{**EU, "name": "main"}], "store.clusters[0].name: 'main' is already the name of the home cluster"),
        (
            [EU, {**EU, "backends": ["127.0.0.1:1"]}],
            "store.clusters[1].name: 'eu' is already used by store.clusters[0]",
        ),
        ([{**EU, "backends": [HOME]}], f"store.clusters[0].backends: {HOME} is already in store.backends"),
        (
            [EU, {**EU, "name": "us"}],
            "store.clusters[1].backends: 127.0.0.1:9092 is already in store.clusters[0].backends",
        ),
        (
            [{**EU, "backends": ["a.example:1", "b.example:1", "a.example:1"]}],
            "store.clusters[0].backends: duplicate 'a.example:1'; remove one of them",
        ),
        (
            [{**EU, "backends": ["a.example:1", "A.example:1"]}],
            "store.clusters[0].backends: 'A.example:1' is the same as 'a.example:1'; remove one of them",
        ),
        ([{**EU, "coordinator": "zookeeper://x"}], "store.clusters[0].coordinator: must be etcd://HOST:PORT"),
        (
            [{**EU, "coordinator": "etcd://127.0.0.1:1/A"}],
            "store.clusters[0].coordinator: the namespace after the slash",
        ),
        (
            [{**EU, "coordinator": "etcd://10.0.0.1:1"}],
            "store.clusters[0].coordinator: the connection to etcd at http://10.0.0.1:1",
        ),
        ([{**EU, "name": f"c{n}"} for n in range(65)], "store.clusters has 65 entries; the maximum is 64"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_number(entries: list[dict[str, Any]], said: str) -> None:
    error = refused(*entries)
    assert error.key == "store.clusters" and said in str(error)


def test_a_backend_of_the_home_cluster_is_named_once() -> None:
    error = refused(STORE__CLUSTERS="", STORE__BACKENDS=f"{HOME},{HOME}")
    assert error.key == "store.backends" and f"duplicate {HOME!r}; remove one of them" in str(error)


def test_further_clusters_need_a_home_cluster() -> None:
    error = refused(EU, STORE__BACKENDS="")
    assert error.key == "store.clusters" and "store.backends" in str(error)


def test_what_is_no_list_is_said_so() -> None:
    assert "[[store.clusters]]" in str(refused(STORE__CLUSTERS='{"name": "eu"}'))
    assert "is not valid JSON" in str(refused(STORE__CLUSTERS="eu"))


def test_backends_of_other_machines_need_tls_in_any_cluster() -> None:
    error = refused({**EU, "backends": ["10.0.0.1:9092"]})
    assert error.key == "store.tls_cert" and "backends on other machines require TLS" in str(error)


def test_the_home_clusters_name_is_a_name() -> None:
    error = refused(STORE__CLUSTERS="", STORE__CLUSTER="-x")
    assert error.key == "store.cluster" and "must be 1 to 31 characters from a-z, 0-9 and hyphen," in str(error)
