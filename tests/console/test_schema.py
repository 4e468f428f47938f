"""The API keeps what its OpenAPI schema says: schemathesis asks it whatever the schema allows, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from support.clients import TOKEN, ConsoleProcess

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.config import SchemathesisConfig  # noqa: E402
from schemathesis.core.parameters import ParameterLocation  # noqa: E402

_EXAMPLES = 5
_GOOD = ["2xx", "400", "404", "409"]
"""400: what a schema cannot say, such as a topic that belongs to the brokers."""
_AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def operations(console: ConsoleProcess) -> list[Any]:
    config = SchemathesisConfig.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": _GOOD}}})
    schema = schemathesis.openapi.from_url(f"{console.address}/api/openapi.json", headers=_AUTHORIZED, config=config)
    return [each.ok() for each in schema.get_all_operations()]


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_api_is_as_its_schema_says(operations: list[Any], mode: str) -> None:
    """All of them: a job at random is none, since no text at random is a verb, and the store is kept for a while."""
    assert len(operations) >= 22
    for operation in operations:
        if mode == "negative" and not (operation.query or operation.body or operation.path_parameters):
            continue

        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        @settings(max_examples=_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            # A percent sign that a name may have is not always escaped in the path, and then is another name.
            assume(mode == "negative" or "%" not in str(case.path_parameters))
            assume(not _has_other_headers(case))
            case.call_and_validate(headers=_AUTHORIZED)

        ask()


def _has_other_headers(case: Any) -> bool:
    """Whether it is its headers that are against the schema: they are replaced here, so nothing would be wrong."""
    header = case.meta.components.get(ParameterLocation.HEADER)
    return header is not None and header.mode.is_negative


def test_a_job_is_told_as_the_schema_says(operations: list[Any]) -> None:
    """From its start to its end; a rebuild ends before Spark is started, because the broker has the store."""
    by_name = {(each.method.upper(), each.path): each for each in operations}
    started = by_name["POST", "/api/jobs"].Case(body={"verb": "rebuild"}).call_and_validate(headers=_AUTHORIZED)
    assert started.status_code == 201
    number = started.json()["number"]
    for method in ("GET", "DELETE", "GET"):
        case = by_name[method, "/api/jobs/{number}"].Case(path_parameters={"number": number})
        assert case.call_and_validate(headers=_AUTHORIZED).status_code == 200
