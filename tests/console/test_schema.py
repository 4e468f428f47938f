"""The API keeps what its OpenAPI schema says: schemathesis asks it whatever the schema allows, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from console_process import TOKEN, ConsoleProcess
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.config import SchemathesisConfig  # noqa: E402

_EXAMPLES = 5
_NOT_AT_RANDOM = {("POST", "/api/jobs"), ("GET", "/api/store")}
"""One starts Spark, the other a process."""
_GOOD = ["2xx", "400", "404", "409"]
"""400: what a schema cannot say, such as a topic that belongs to the brokers."""
_AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def operations(console: ConsoleProcess) -> list[Any]:
    config = SchemathesisConfig.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": _GOOD}}})
    schema = schemathesis.openapi.from_url(f"{console.address}/api/openapi.json", headers=_AUTHORIZED, config=config)
    found = [each.ok() for each in schema.get_all_operations()]
    return [each for each in found if (each.method.upper(), each.path) not in _NOT_AT_RANDOM]


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_api_is_as_its_schema_says(operations: list[Any], mode: str) -> None:
    assert len(operations) >= 18
    for operation in operations:
        if mode == "negative" and not (operation.query or operation.body or operation.path_parameters):
            continue

        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        @settings(max_examples=_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            case.call_and_validate(headers=_AUTHORIZED)

        ask()
