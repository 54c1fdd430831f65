"""Hundreds of requests made from the OpenAPI document, right and wrong ones: it tells the truth, nothing is a 500.

The requests for an operation are made when its test runs: a dozen seconds of a processor, which each process that only
collects the tests would spend. So this calls what the plugin of Schemathesis calls when it collects.

A schema's corner cases are thousands. Some of each operation are asked always, spread over all that there are; each of
them in the long run.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings

from gateway.alerts.core.rules import KINDS
from gateway.api import asyncapi
from gateway.api.alert_rules import fields_of
from gateway.api.openapi import document
from gateway.queues.rules import RULES
from tests.support.seeds import IS_EXPLORING, SEED, examples
from tests.support.server import PushqServer

if TYPE_CHECKING:
    import requests

EXAMPLES = examples(1, exploring=25)
CORNERS = 10_000 if IS_EXPLORING else 8
"""Of the corner cases of an operation, about as many are asked."""
WAIT_MS = 20
# They never end; the tests of SSE and of alerts read them.
STREAMS = ["/v1/queues/{queue}/events", "/v1/alerts/events"]
KNOWN_AT_RUN_TIME = {"/query/cursor", "/query/confirm", "/confirm", "/expires_at", "/from", "/name"}
KNOWN_AT_RUN_TIME |= {"/dead_letter_queue", "/colocate_with"} | {f"/{name}" for rule in RULES for name in rule.settings}
KNOWN_AT_RUN_TIME |= {f"/messages/*/{name}" for name in ("priority", "delay_ms", "deliver_at", "ttl_ms")}
KNOWN_AT_RUN_TIME |= {f"/messages/*/{name}" for name in ("producer", "producer_seq")}
KNOWN_AT_RUN_TIME |= {"/queues", "/queues/*", "/master_file", "/query/from", "/query/to"}
KNOWN_AT_RUN_TIME |= {"/query/move_to", "/query/discard"}
KNOWN_AT_RUN_TIME |= {"/group", "/queue", "/to", "/receipts", "/query/partition", "/path/queue"}
KNOWN_AT_RUN_TIME |= {f"/{field}" for kind, what in KINDS.items() for field in fields_of(kind, what)}
KNOWN_AT_RUN_TIME |= {"/url", "/ends_at", "/rule", "/receivers/*"}
"""What no schema can say: which cursor was given out, what the queue is called, what time it is, how long in bytes,
which queues there are and which of them are streams, which settings go together, what a queue's messages may have, and
which fields go together: an ack that publishes needs a receipt, each kind of alert rule has fields of its own, a
silence needs an end or a length, a webhook a public address, and which receivers there are."""

GENERATION = {"mode": "all", "with-security-parameters": False}
METHODS = ("get", "put", "post", "patch", "delete", "head", "options", "trace")
OPERATIONS = [(path, method) for path, item in document()["paths"].items() for method in METHODS if method in item]


def for_each(operations: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("path", "method"), operations, ids=[f"{method.upper()} {path}" for path, method in operations]
    )


@functools.cache
def _schema() -> Any:
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    config = schemathesis.Config.from_dict({"seed": SEED, "generation": GENERATION})
    return schemathesis.openapi.from_dict(document(), config=config)


def _with_requests(path: str, method: str, test: Callable[[Any], None]) -> None:
    """Calls `test` with each request that is made for an operation."""
    from schemathesis.generation.feedback import FeedbackSources
    from schemathesis.pytest._test_builder import build_operation_test

    schema = _schema()
    build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=test,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all that is asked, where Schemathesis opens one for each request."""
    import requests

    with requests.Session() as session:
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        yield session


@for_each([one for one in OPERATIONS if one[0] not in STREAMS])
def test_the_document_tells_the_truth(
    path: str, method: str, shared_server: PushqServer, session: requests.Session
) -> None:
    corners: list[Any] = []

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def told(case: Any) -> None:
        if case.meta.phase.name == "coverage":
            corners.append(case)
        else:
            _is_told_the_truth(case, shared_server, session)

    _with_requests(path, method, told)
    for case in corners[:: max(1, len(corners) // CORNERS)]:
        _is_told_the_truth(case, shared_server, session)


@for_each([one for one in OPERATIONS if one[0] not in STREAMS])
def test_the_document_tells_the_truth_in_every_corner(
    path: str, method: str, shared_server: PushqServer, session: requests.Session
) -> None:
    @settings(max_examples=1, deadline=None, phases=(Phase.explicit,), suppress_health_check=list(HealthCheck))
    def told(case: Any) -> None:
        _is_told_the_truth(case, shared_server, session)

    _with_requests(path, method, told)


def _is_told_the_truth(case: Any, server: PushqServer, session: requests.Session) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    _shorten_wait(case)
    response = case.call(base_url=server.url, session=session, headers=server.headers, timeout=20)
    excused: list[Any] = []
    if response.status_code == 412:  # the state is checked before the body
        excused = [checks.positive_data_acceptance, checks.negative_data_rejection]
    elif response.status_code == 422:  # the same idempotency key for something else
        excused = [checks.positive_data_acceptance]
    elif response.status_code in (503, 504) and "Pushq-Timeout-Ms" in (case.headers or {}):
        excused = [checks.positive_data_acceptance, not_a_server_error]  # a millisecond is too little, and it says so
    elif response.status_code == 413 or _pointers(response) & KNOWN_AT_RUN_TIME or " bytes, not " in response.text:
        excused = [checks.positive_data_acceptance]
    elif response.status_code == 428:  # the protocol's answer where this check expects a 400
        excused = [checks.missing_required_header]
    if _has_further_headers(case):  # as nearly each request has that a proxy passes on
        excused.append(checks.negative_data_rejection)
    case.validate_response(response, excluded_checks=excused)


def _has_further_headers(case: Any) -> bool:
    """Whether all that is meant to be wrong with a request is that it has headers which the document does not name."""
    from schemathesis.core.parameters import ParameterLocation
    from schemathesis.generation.meta import CoveragePhaseData, CoverageScenario

    data = case.meta.phase.data
    is_further = isinstance(data, CoveragePhaseData) and data.scenario is CoverageScenario.OBJECT_UNEXPECTED_PROPERTIES
    return bool(is_further and data.parameter_location is ParameterLocation.HEADER)


CREDENTIALS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer pushq_00000000_forged"},
    {"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."},
    {"Authorization": "Basic YWRtaW46YWRtaW4="},
    {"Authorization": "Bearer " + "a" * 10_000},
)


@for_each([one for one in OPERATIONS if one[0].startswith("/v1")])
def test_whoever_has_no_good_credential_gets_401_whatever_else_is_wrong(
    path: str, method: str, shared_server: PushqServer, session: requests.Session
) -> None:
    @settings(max_examples=1, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    def refused(case: Any) -> None:
        for credential in CREDENTIALS:
            response = case.call(base_url=shared_server.url, session=session, headers=credential, timeout=20)
            assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")
            assert response.headers["content-type"] == ["application/problem+json"]

    _with_requests(path, method, refused)


def _shorten_wait(case: Any) -> None:
    """A receive may wait for a minute; here it need not."""
    body = case.body
    if isinstance(body, dict) and type(body.get("wait_ms")) is int and WAIT_MS < body["wait_ms"] <= 60_000:
        case.body = body | {"wait_ms": WAIT_MS}


def _pointers(response: Any) -> set[str]:
    if response.status_code != 400:
        return set()
    errors = response.json().get("errors", ())
    pointers = (re.sub(r"/(messages|queues|receivers)/\d+", r"/\1/*", error["pointer"]) for error in errors)
    return {re.sub(r"^/publish/\d+", "", pointer) for pointer in pointers}


def test_the_server_shows_the_documents_of_its_code(shared_server: PushqServer) -> None:
    assert httpx2.get(f"{shared_server.url}/openapi.json").json() == json.loads(json.dumps(document()))
    assert httpx2.get(f"{shared_server.url}/asyncapi.json").json() == json.loads(json.dumps(asyncapi.document()))
