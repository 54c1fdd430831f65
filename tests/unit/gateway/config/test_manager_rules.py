"""What the settings `manager.*` may say, and what of them is shown."""

from __future__ import annotations

import pytest

from gateway.config.load import ConfigError, load_settings, shown


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"LISTEN": "8089"}, "manager.listen"),
        ({"LOOK_S": "0"}, "manager.look_s"),
        ({"LOOK_S": "11"}, "manager.look_s"),
        ({"PROVISIONER": "  "}, "manager.provisioner"),
        ({"PROVISIONER": "provision 'us"}, "manager.provisioner"),
        ({"PROVISIONER": "http://servers.example.org/"}, "manager.provisioner"),
        ({"PROVISIONER": "ftp://servers.example.org/"}, "manager.provisioner"),
        ({"PROVISIONER": "https://me:s3cret@servers.example.org/"}, "manager.provisioner"),
        ({"PROVISIONER": "https:///hook"}, "manager.provisioner"),
        ({"PROVISIONER_TOKEN_FILE": "token"}, "manager.provisioner_token_file"),
        ({"PROVISIONER": "provision", "PROVISIONER_TOKEN_FILE": "token"}, "manager.provisioner_token_file"),
        ({"PROVISIONER_TIMEOUT_S": "0"}, "manager.provisioner_timeout_s"),
        ({"NODES_MIN": "5", "NODES_MAX": "4"}, "manager.nodes_min"),
        ({"GROW_AFTER_S": "-1"}, "manager.grow_after_s"),
        ({"RELIEF": "moves"}, "manager.relief"),
    ],
)
def test_a_setting_that_cannot_be_is_named(variables: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        load_settings({}, {f"PUSHQ_MANAGER__{name}": value for name, value in variables.items()})
    assert wrong.value.key == key
    assert "s3cret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", ""),
        ("/opt/provision --token s3cret", "/opt/provision ***"),
        ("/opt/provision", "/opt/provision"),
        ("https://servers.example.org/hook/s3cret", "https://servers.example.org/***"),
        ("http://127.0.0.1:9000/hook", "http://127.0.0.1/***"),
    ],
)
def test_a_provisioner_is_taken_and_shown_without_what_may_be_secret(text: str, what: str) -> None:
    loaded = load_settings({}, {"PUSHQ_MANAGER__PROVISIONER": text})
    assert loaded.settings.manager.provisioner == text
    assert shown("manager.provisioner", text) == what
