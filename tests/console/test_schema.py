"""The API does what its OpenAPI schema says, asked for whatever the schema allows and for what it does not allow.

A small reader of JSON Schema, for the words that FastAPI writes, makes the requests and judges the answers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients import ConsoleProcess

EXAMPLES = 15
Schema = Mapping[str, Any]
Values = st.SearchStrategy[Any]

GOOD = (200, 201, 400, 404, 409)
"""400: what a schema cannot say, such as a topic that belongs to the brokers."""
REFUSED = (400, 404, 405, 422)
KNOWN = ("orders", "oddities", "warehouse", "returns")
"""Names that the cluster has: for requests that change nothing."""
TEXT = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/%\\?#")


class Operation(NamedTuple):
    """A method of a path, as the schema has it."""

    method: str
    path: str
    parameters: list[dict[str, Any]]
    body: Schema | None
    answers: dict[str, Any]

    def within(self, place: str) -> list[dict[str, Any]]:
        return [each for each in self.parameters if each["in"] == place]

    @property
    def can_be_wrong(self) -> bool:
        return bool(self.parameters or self.body)


class Api:
    """The schema, and what follows from it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._shapes: dict[str, Schema] = schema["components"]["schemas"]
        self.operations = [
            Operation(
                method.upper(),
                path,
                told.get("parameters", []),
                told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema"),
                told["responses"],
            )
            for path, methods in schema["paths"].items()
            for method, told in methods.items()
        ]

    def shape(self, schema: Schema) -> Schema:
        """The schema itself, without the reference to it."""
        return self._shapes[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    # -- judging -----------------------------------------------------------------------------------------------

    def faults(self, schema: Schema, value: Any, place: str = "body") -> Iterator[str]:
        """What is wrong with a value."""
        schema = self.shape(schema)
        if "anyOf" in schema:
            if all(any(True for _ in self.faults(each, value)) for each in schema["anyOf"]):
                yield f"{place}: {value!r} is none of {schema['anyOf']}"
            return
        if not _is_a(schema.get("type"), value):
            yield f"{place}: {value!r} is no {schema['type']}"
            return
        if value not in schema.get("enum", [value]) or value != schema.get("const", value):
            yield f"{place}: {value!r} is not among the values"
        if isinstance(value, dict):
            known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            yield from (f"{place}: {name} is missing" for name in schema.get("required", ()) if name not in value)
            for name, each in value.items():
                if name in known or isinstance(others, dict):
                    yield from self.faults(known.get(name, others), each, f"{place}.{name}")
                elif not others:
                    yield f"{place}: {name} is not known"
        elif isinstance(value, list):
            for number, each in enumerate(value):
                yield from self.faults(schema.get("items", {}), each, f"{place}[{number}]")
        elif isinstance(value, str):
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
                yield f"{place}: {value!r} is too short or too long"
            if not re.search(schema.get("pattern", ""), value):
                yield f"{place}: {value!r} does not match"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_below = "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]
            if not is_below or not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                yield f"{place}: {value} is too small or too large"

    # -- asking ------------------------------------------------------------------------------------------------

    def values(self, schema: Schema) -> Values:
        """What a schema allows."""
        schema = self.shape(schema)
        if "anyOf" in schema:
            return st.one_of([self.values(each) for each in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        kind = schema.get("type")
        if kind == "string":
            if "pattern" in schema:
                texts = st.from_regex(schema["pattern"].replace("%", ""), fullmatch=True)
                return texts.filter(lambda text: not any(self.faults(schema, text)))
            return st.text(TEXT, min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 50), 300))
        if kind == "integer":
            last = min(schema.get("maximum", 2**53 - 1), schema.get("exclusiveMaximum", 2**53) - 1)
            return st.integers(schema.get("minimum", -(2**53) + 1), last)
        if kind == "array":
            sizes = {"min_size": schema.get("minItems", 0), "max_size": min(schema.get("maxItems", 4), 4)}
            return st.lists(self.values(schema.get("items", {})), **sizes)
        if kind == "object":
            required = set(schema.get("required", ()))
            fields = {name: self.values(each) for name, each in schema.get("properties", {}).items()}
            if not fields:
                others = schema.get("additionalProperties")
                return st.dictionaries(
                    st.text(TEXT), self.values(others if isinstance(others, dict) else {}), max_size=3
                )
            optional = {name: each for name, each in fields.items() if name not in required}
            return st.fixed_dictionaries({name: fields[name] for name in fields if name in required}, optional=optional)
        return {"boolean": st.booleans(), "null": st.none(), "number": st.floats(-1e6, 1e6)}.get(
            str(kind), st.text(TEXT, max_size=20)
        )

    def wrong(self, schema: Schema) -> Values:
        """What a schema does not allow."""
        anything = st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**70), 2**70),
            st.text(TEXT, max_size=600),
            st.lists(st.integers(), max_size=2),
            st.dictionaries(st.text(TEXT, max_size=9), st.text(TEXT, max_size=9), max_size=2),
        )
        bad = anything.filter(lambda value: any(self.faults(schema, value)))
        shape = self.shape(schema)
        fields = shape.get("properties", {})
        if not fields:
            return bad
        spoilt = [
            st.builds(
                lambda whole, each, name=name: {**whole, name: each}, self.values(schema), self.wrong(fields[name])
            )
            for name in fields
        ]
        cut = [
            st.builds(
                lambda whole, name=name: {key: each for key, each in whole.items() if key != name}, self.values(schema)
            )
            for name in shape.get("required", ())
        ]
        return st.one_of(bad, *spoilt, *cut).filter(lambda value: any(self.faults(schema, value)))


def _is_a(kind: str | None, value: Any) -> bool:
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    types: dict[str | None, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": type(None),
    }
    return kind is None or isinstance(value, types[kind])


@pytest.fixture(scope="module")
def api(console: ConsoleProcess) -> Api:
    with console.client() as client:
        return Api(client.get("/api/openapi.json").json())


@pytest.fixture(scope="module")
def asking(console: ConsoleProcess) -> Iterator[httpx.Client]:
    with console.client() as client:
        yield client


def as_told(api: Api, operation: Operation, answer: httpx.Response) -> None:
    """Asserts that an answer is one that the schema has for this operation."""
    assert answer.status_code < 500, answer.text
    told = operation.answers.get(str(answer.status_code))
    assert told is not None, f"{answer.status_code} is not in the schema"
    assert answer.headers["content-type"] == "application/json"
    schema = told["content"]["application/json"]["schema"]
    assert list(api.faults(schema, answer.json())) == []


def ask(client: httpx.Client, operation: Operation, given: Mapping[str, Any]) -> httpx.Response:
    path = operation.path
    for each in operation.within("path"):
        path = path.replace(f"{{{each['name']}}}", quote(str(given["path"][each["name"]]), safe=""))
    query = {name: str(value) for name, value in given["query"].items() if value is not None}
    body = {"json": given["body"]} if operation.body is not None else {}
    return client.request(operation.method, path, params=query, **body)


def requests(api: Api, operation: Operation) -> Values:
    """What the schema allows to ask."""

    def of(place: str) -> Values:
        fields = operation.within(place)
        needed = {each["name"]: _named(api.values(each["schema"]), operation, each) for each in fields}
        optional = {each["name"]: needed.pop(each["name"]) for each in fields if not each["required"]}
        return st.fixed_dictionaries(needed, optional=optional)

    body = st.none() if operation.body is None else api.values(operation.body)
    return st.fixed_dictionaries({"path": of("path"), "query": of("query"), "body": body})


def _named(values: Values, operation: Operation, parameter: Mapping[str, Any]) -> Values:
    if parameter["in"] == "path":
        values = values.filter(lambda value: str(value).strip(". ") == str(value))  # dots are a way within a path
    if operation.method == "GET" and parameter["name"] in ("topic", "group"):
        return values | st.sampled_from(KNOWN)
    return values


def wrong_requests(api: Api, operation: Operation) -> Values:
    """A request that the schema allows, with one thing in it that it does not."""

    def spoil(place: str, parameter: Mapping[str, Any]) -> Values:
        name, schema = parameter["name"], parameter["schema"]
        texts = st.text(TEXT, min_size=1, max_size=600).filter(lambda text: text.strip(". ") == text)
        bad = texts.filter(lambda text: _is_wrong_text(api, schema, text))
        return st.builds(lambda whole, text: {**whole, place: {**whole[place], name: text}}, good, bad)

    good = requests(api, operation)
    kinds = [
        spoil(each["in"], each)
        for each in operation.parameters
        if {"minimum", "pattern", "maxLength"} & set(each["schema"]) or "anyOf" in each["schema"]
    ]
    for each in operation.within("query"):
        if each["required"]:
            kinds.append(good.map(lambda whole, name=each["name"]: _without(whole, name)))
    kinds.append(good.map(lambda whole: {**whole, "query": {**whole["query"], "no_such_parameter": "1"}}))
    if operation.body is not None:
        kinds.append(st.builds(lambda whole, body: {**whole, "body": body}, good, api.wrong(operation.body)))
    return st.one_of(kinds)


def _without(whole: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**whole, "query": {key: each for key, each in whole["query"].items() if key != name}}


def _is_wrong_text(api: Api, schema: Schema, text: str) -> bool:
    """Whether a text, which is all that a path or a query can hold, is none of the values that a schema allows."""
    readings: list[Any] = [text]
    with contextlib.suppress(ValueError):
        readings.append(int(text))
    return all(any(api.faults(schema, each)) for each in readings)


def try_out(api: Api, client: httpx.Client, operation: Operation, asked: Values, statuses: tuple[int, ...]) -> None:
    @given(request=asked)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def try_one(request: dict[str, Any]) -> None:
        answer = ask(client, operation, request)
        assert answer.status_code in statuses, (operation.method, operation.path, answer.text)
        as_told(api, operation, answer)

    try_one()


def test_what_the_schema_allows_is_answered_as_it_says(api: Api, asking: httpx.Client) -> None:
    assert len(api.operations) >= 22
    for operation in api.operations:
        try_out(api, asking, operation, requests(api, operation), GOOD)


def test_what_the_schema_does_not_allow_is_refused(api: Api, asking: httpx.Client) -> None:
    for operation in (each for each in api.operations if each.can_be_wrong):
        try_out(api, asking, operation, wrong_requests(api, operation), REFUSED)


def test_a_job_is_told_as_the_schema_says(api: Api, asking: httpx.Client) -> None:
    """From its start to its end; a rebuild ends before Spark is started, because the broker has the store."""
    by_name = {(each.method, each.path): each for each in api.operations}
    start = by_name["POST", "/api/jobs"]
    started = ask(asking, start, {"path": {}, "query": {}, "body": {"verb": "rebuild"}})
    as_told(api, start, started)
    assert started.status_code == 201
    number = started.json()["number"]
    for method in ("GET", "DELETE", "GET"):
        operation = by_name[method, "/api/jobs/{number}"]
        answer = ask(asking, operation, {"path": {"number": number}, "query": {}, "body": None})
        as_told(api, operation, answer)
        assert answer.status_code == 200
