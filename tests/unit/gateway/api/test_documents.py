"""The API's documents are whole: every reference leads somewhere, every operation and frame is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from backend_store.model import QueueConfig
from gateway.api import asyncapi, openapi
from gateway.api.frames import EVENTS, SERVER_FRAMES
from gateway.api.table import OPERATIONS
from gateway.queues.config import queue_config, shown_config
from gateway.queues.settings import FIXED, PART_RANGES, RANGES
from push.client.model import TransportName
from push.problems import KINDS
from push.protocol import ClientFrame

DOCUMENTS = {"openapi": openapi.document(), "asyncapi": asyncapi.document()}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_reference_leads_somewhere(name: str) -> None:
    document = DOCUMENTS[name]
    for reference in set(references(document)):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_plain_json_and_its_schemas_are_schemas(name: str) -> None:
    document = json.loads(json.dumps(DOCUMENTS[name]))
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_operation_is_documented_once() -> None:
    paths = DOCUMENTS["openapi"]["paths"]
    documented = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert sorted(documented) == sorted((o.method, o.path) for o in OPERATIONS)
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_code_of_the_protocol_has_a_documented_status() -> None:
    responses = DOCUMENTS["openapi"]["components"]["responses"]
    for code, kind in KINDS.items():
        assert f"`{code}`" in responses[str(kind.status)]["description"]


def test_every_operation_says_what_it_takes_and_answers_beside_bodies() -> None:
    paths = DOCUMENTS["openapi"]["paths"]
    not_shown = {"uid"}  # told by the answer before
    for operation in OPERATIONS:
        shown = paths[operation.path][operation.method.lower()]
        names = {(one["in"], one["name"]) for one in shown["parameters"]}
        assert {("query", name) for name in operation.query} - names <= {("query", name) for name in not_shown}
        assert "503" in shown["responses"]
        for answer in (shown["responses"][str(status)] for status in operation.answers):
            assert {"RateLimit", "RateLimit-Policy"} <= answer["headers"].keys()
    assert "ETag" in paths["/v1/queues/{queue}"]["get"]["responses"]["200"]["headers"]
    rule = paths["/v1/alert-rules/{rule}"]
    assert "ETag" in rule["get"]["responses"]["200"]["headers"]
    for method in ("put", "delete"):
        assert {"If-Match", "If-None-Match"} <= {one["name"] for one in rule[method]["parameters"]}
        assert "412" in rule[method]["responses"]
    assert "Location" in paths["/v1/queues/{queue}/purge"]["post"]["responses"]["202"]["headers"]
    assert "Link" in paths["/v1/queues"]["get"]["responses"]["200"]["headers"]
    events = paths["/v1/queues/{queue}/events"]["get"]["parameters"]
    assert ("header", "Last-Event-ID") in {(one["in"], one["name"]) for one in events}
    assert "`ce-specversion`" in paths["/v1/queues/{queue}/messages"]["post"]["description"]
    responses = DOCUMENTS["openapi"]["components"]["responses"]
    assert {"Retry-After"} <= responses["429"]["headers"].keys() & responses["503"]["headers"].keys()


def test_connections_name_their_transport_as_the_clients_do() -> None:
    schema = DOCUMENTS["openapi"]["components"]["schemas"]["ConnectionView"]["properties"]["transport"]
    assert set(schema["enum"]) == set(get_args(TransportName))


def validator(name: str) -> jsonschema.Draft202012Validator:
    schemas = DOCUMENTS["openapi"]["components"]["schemas"]
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}},
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )


def test_a_move_is_to_a_cluster_or_over_several() -> None:
    schema = validator("MoveWanted")
    for given in ({"to": "eu"}, {"over": ["eu", "us"]}, {"to": "eu", "over": None}, {"to": None, "over": ["eu"]}):
        assert schema.is_valid({"queue": "orders", **given}), given
    for given in ({}, {"to": None}, {"to": "eu", "over": ["us"]}, {"over": []}, {"over": ["eu", "eu"]}):
        assert not schema.is_valid({"queue": "orders", **given}), given
    answer = DOCUMENTS["openapi"]["paths"]["/v1/cluster/moves"]["post"]["responses"]["202"]["content"]
    kinds = [one["$ref"].rpartition("/")[2] for one in answer["application/json"]["schema"]["anyOf"]]
    assert kinds == ["MoveView", "QueuePlace"]


def test_the_config_schema_allows_what_the_server_allows() -> None:
    schema = validator("QueueConfig")
    assert schema.is_valid(msgspec.to_builtins(shown_config(QueueConfig(), "orders")))
    for given in (
        {"kind": "stream", "retention_ms": None}, {"visibility_timeout_ms": 0}, {"tags": {"a": "b"}},
        {"dead_letter_queue": None}, {"dead_letter_queue": "orders.dead"},
        {"max_messages": 5, "overflow": "drop_oldest"}, {"partitions": 64}, {"auto_expand": None},
        {"auto_expand": {"of": "partition_messages", "limit": 1}},
    ):  # fmt: skip
        assert schema.is_valid(given) and queue_config(given, "orders")
    wrong: dict[str, Any]
    for wrong in (
        {"partitions": 65}, {"encrypted": "yes"}, {"dedupe": "all"}, {"max_message_bytes": 0}, {"x": 1},
        {"max_bytes": 0}, {"delay_ms": None}, {"dead_letter_queue": "a b"}, {"auto_expand": {}},
        {"auto_expand": {"of": "bytes", "limit": 1}}, {"auto_expand": {"of": "partition_bytes", "limit": 1, "x": 1}},
    ):  # fmt: skip
        assert not schema.is_valid(wrong)


@pytest.mark.parametrize("name", RANGES)
def test_the_config_schema_has_the_bounds_of_the_server(name: str) -> None:
    schema, (low, high) = validator("QueueConfig"), RANGES[name]
    assert schema.is_valid({name: low}) and schema.is_valid({name: high})
    assert not schema.is_valid({name: low - 1}) and not schema.is_valid({name: high + 1})


@pytest.mark.parametrize("name", PART_RANGES)
def test_the_schema_of_growing_by_itself_has_the_bounds_of_the_server(name: str) -> None:
    schema, (low, high) = validator("QueueConfig"), PART_RANGES[name]
    for value, is_right in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        given = {"of": "partition_messages", "limit": 9, name: value}
        assert schema.is_valid({"auto_expand": given}) is is_right


def test_every_setting_and_part_of_one_is_described() -> None:
    schemas = DOCUMENTS["openapi"]["components"]["schemas"]
    for name in ("QueueConfig", "AutoExpand"):
        assert all(schema.get("description") for schema in schemas[name]["properties"].values())


def test_the_schema_of_changes_has_what_may_change() -> None:
    may_change = DOCUMENTS["openapi"]["components"]["schemas"]["QueueChanges"]["properties"]
    assert may_change.keys() == set(QueueConfig.__struct_fields__) - FIXED.keys()
    assert not any("default" in schema for schema in may_change.values())


def test_the_schema_of_a_message_has_its_bounds() -> None:
    schema = validator("PublishMessage")
    for more in (
        {"priority": 9, "delay_ms": 0, "ttl_ms": 1}, {"producer": "p", "producer_seq": 1},
        {"deliver_at": "2026-11-21T10:00:00Z", "timestamp": None},
    ):  # fmt: skip
        assert schema.is_valid({"body": None} | more)
    for wrong in (
        {"priority": 10},
        {"priority": -1},
        {"delay_ms": -1},
        {"ttl_ms": 0},
        {"producer_seq": 0},
        {"producer": ""},
    ):
        assert not schema.is_valid({"body": None} | wrong)


def test_every_frame_and_event_has_a_message() -> None:
    document = DOCUMENTS["asyncapi"]
    kinds = {kind.__name__ for kind in (*get_args(ClientFrame), *SERVER_FRAMES, *EVENTS)}
    payloads = {m["payload"]["$ref"].rsplit("/", 1)[1] for m in document["components"]["messages"].values()}
    assert payloads == kinds
    assert all(m["summary"] for m in document["components"]["messages"].values() if "Frame" in m["name"])


def test_every_operation_of_the_socket_names_messages_of_its_channel() -> None:
    document = DOCUMENTS["asyncapi"]
    assert document["asyncapi"] == "3.1.0"
    for operation in document["operations"].values():
        channel = operation["channel"]["$ref"]
        assert operation["messages"]
        assert all(m["$ref"].startswith(f"{channel}/messages/") for m in operation["messages"])
