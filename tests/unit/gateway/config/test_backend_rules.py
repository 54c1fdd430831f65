from pathlib import Path

import pytest

from gateway.clusters.etcd_access import EtcdAccess, etcd_config
from gateway.config.addresses import EtcdAt, parse_etcd
from gateway.config.backend_rules import coordinator_of
from gateway.config.load import ConfigError, load_settings
from gateway.listener.certificates import OwnCertificates
from gateway.roles.errors import CannotStart


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"NODE__NAME": "No Name"}, "node.name"),
        ({"NODE__LISTEN": "8090"}, "node.listen"),
        ({"NODE__LISTEN": "10.0.0.1:8090"}, "node.listen"),
        ({"NODE__TLS_CERT": "a.crt"}, "node.tls_key"),
        ({"CLUSTER__COORDINATOR": "zookeeper://here"}, "cluster.coordinator"),
        ({"CLUSTER__COORDINATOR": "etcd://here"}, "cluster.coordinator"),
        ({"CLUSTER__COORDINATOR": "etcd://127.0.0.1:2379/a b"}, "cluster.coordinator"),
        ({"CLUSTER__COORDINATOR": "etcd://10.0.0.1:2379"}, "cluster.coordinator"),
        ({"CLUSTER__ETCD_TLS_CERT": "a.crt", "CLUSTER__ETCD_TLS_CA": "ca.crt"}, "cluster.etcd_tls_key"),
        ({"CLUSTER__ETCD_TLS_CERT": "a.crt", "CLUSTER__ETCD_TLS_KEY": "a.key"}, "cluster.etcd_tls_ca"),
        ({"CLUSTER__ETCD_USER": "pushq"}, "cluster.etcd_password_file"),
        ({"CLUSTER__ETCD_PASSWORD_FILE": "password"}, "cluster.etcd_user"),
        ({"CLUSTER__SHARDS": "0"}, "cluster.shards"),
        ({"CLUSTER__MIN_IN_SYNC": "4"}, "cluster.min_in_sync"),
        ({"CLUSTER__MODEL": "leaderless"}, "cluster.model"),
        ({"CLUSTER__MODEL": "independent_hosts"}, "cluster.coordinator"),
        ({"CLUSTER__LANES": "17"}, "cluster.lanes"),
        (
            {
                "CLUSTER__MODEL": "independent_hosts",
                "CLUSTER__COORDINATOR": "etcd://127.0.0.1:2379",
                "CLUSTER__LANES": "1",
            },
            "cluster.min_in_sync",
        ),
    ],
)
def test_setting_of_a_backend_that_cannot_be_is_named(variables: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {f"PUSHQ_{name}": value for name, value in variables.items()})
    assert caught.value.key == key


def test_members_of_etcd_are_read_from_one_address() -> None:
    two = EtcdAt(["http://10.0.0.1:2379", "http://[::1]:2379"])
    assert parse_etcd("etcd://10.0.0.1:2379,[::1]:2379") == two
    assert parse_etcd("etcd://10.0.0.1:2379", tls=True) == EtcdAt(["https://10.0.0.1:2379"])


def test_what_follows_the_slash_is_the_namespace() -> None:
    assert parse_etcd("etcd://10.0.0.1:2379/").namespace == parse_etcd("etcd://10.0.0.1:2379").namespace == "pushq"
    assert parse_etcd("etcd://10.0.0.1:2379,10.0.0.2:2379/eu-west").namespace == "eu-west"
    assert etcd_config(parse_etcd("etcd://127.0.0.1:1/eu"), EtcdAccess(), OwnCertificates()).namespace == b"eu/"
    for text in ("etcd://10.0.0.1:2379/eu/west", "etcd://10.0.0.1:2379/EU", "etcd://10.0.0.1:2379/eu%2f"):
        with pytest.raises(ValueError, match="the namespace after the slash must be 1 to 63"):
            parse_etcd(text)


def test_etcd_of_another_machine_is_taken_with_an_authority() -> None:
    found = load_settings(
        {}, {"PUSHQ_CLUSTER__COORDINATOR": "etcd://10.0.0.1:2379", "PUSHQ_CLUSTER__ETCD_TLS_CA": "ca"}
    )
    assert coordinator_of(found.settings.cluster) == EtcdAt(["https://10.0.0.1:2379"])


@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot read"), ("", "is empty"), ("secret", "cannot use the etcd certificates")]
)
def test_files_for_etcd_that_cannot_be_used_are_named(tmp_path: Path, text: str | None, said: str) -> None:
    password, authority = tmp_path / "password", tmp_path / "ca.crt"
    authority.write_text("this is no certificate")
    if text is not None:
        password.write_text(text)
    with pytest.raises(CannotStart, match=said) as caught:
        etcd_config(
            EtcdAt(["https://10.0.0.1:2379"]),
            EtcdAccess(str(authority), "", "", "pushq", str(password)),
            OwnCertificates(),
        )
    assert str(tmp_path) in str(caught.value)
