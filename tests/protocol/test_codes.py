"""The numbers in the protocol's table of codes."""

from __future__ import annotations

import pytest

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers import REPLIES, REQUESTS
from penstock.protocol.versions import CURRENT, V4_9_2, V4_9_4, V4_9_8, V5_0_0, Language, language_of, version_name

REQUEST_NUMBERS = """
    10 11 12 14 15 17 21 25 26 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 45 46 50 51 52 53 54
    100 101 102 103 104 105 106 200 201 202 203 204 205 206 207 208 215 216 219 220 221 222 223 224
    300 303 304 305 306 307 308 309 310 311 312 313 314 315 316 317 318 319 320 321 322 323 324 325 326 327 328 329
    343 345 351 352 361 400 401 907 200050 200051 200052 200053 200054 200055 200151 30901
"""
RESPONSE_NUMBERS = """
    0 1 2 3 4 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
    200 201 202 206 207 208 209 210 211 215 501 604 1500
"""
WITHOUT_ARGUMENTS = """
    GET_BROKER_CLUSTER_INFO GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_SYSTEM_TOPIC_LIST_FROM_NS UPDATE_NAMESRV_CONFIG
    GET_NAMESRV_CONFIG HEART_BEAT CHECK_CLIENT_CONFIG QUERY_ASSIGNMENT SET_MESSAGE_REQUEST_MODE LOCK_BATCH_MQ
    UNLOCK_BATCH_MQ GET_ALL_TOPIC_CONFIG GET_SYSTEM_TOPIC_LIST_FROM_BROKER UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG UPDATE_BROKER_CONFIG GET_BROKER_CONFIG
    CLEAN_EXPIRED_CONSUMEQUEUE CLEAN_UNUSED_TOPIC DELETE_EXPIRED_COMMITLOG GET_ALL_CONSUMER_OFFSET GET_ALL_DELAY_OFFSET
    GET_UNIT_TOPIC_LIST GET_HAS_UNIT_SUB_TOPIC_LIST GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST GET_ALL_PRODUCER_INFO
    GET_BROKER_CLUSTER_ACL_INFO GET_BROKER_CLUSTER_ACL_CONFIG GET_BROKER_HA_STATUS
"""


def test_every_request_code_is_there_and_no_other() -> None:
    assert sorted(RequestCode) == sorted(map(int, REQUEST_NUMBERS.split()))


def test_every_response_code_is_there_and_no_other() -> None:
    assert sorted(ResponseCode) == sorted(map(int, RESPONSE_NUMBERS.split()))


@pytest.mark.parametrize("code", [code for code in RequestCode if code < 200_000], ids=lambda code: code.name)
def test_a_code_has_a_typed_header_or_no_arguments(code: RequestCode) -> None:
    assert (code in REQUESTS) != (code.name in WITHOUT_ARGUMENTS.split())


def test_no_two_headers_claim_the_same_code() -> None:
    kinds = [kind for table in (REQUESTS, REPLIES) for kind in set(table.values())]
    claimed = [(code, kind) for kind in kinds for code in kind.codes]
    assert len(claimed) == len(REQUESTS) + len(REPLIES)


def test_languages_have_the_numbers_of_the_binary_header() -> None:
    names = "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS"
    assert [language.name for language in sorted(Language)] == names.split()
    assert [language_of(name) for name in names.split()] == list(range(14))
    assert [language_of(number) for number in range(14)] == list(range(14))


@pytest.mark.parametrize("unknown", ["COBOL", "java", "", 14, -1, None])
def test_a_language_nobody_knows_is_other(unknown: object) -> None:
    assert language_of(unknown) is Language.OTHER


def test_versions_are_two_places_apart() -> None:
    assert (V4_9_2, V4_9_4, V4_9_8, V5_0_0) == (397, 401, 409, 413)
    assert CURRENT == V4_9_8


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (63, "V3_1_8"),
        (121, "V3_4_9"),
        (392, "V4_9_0_SNAPSHOT"),
        (397, "V4_9_2"),
        (409, "V4_9_8"),
        (411, "V4_9_9"),
        (412, "V5_0_0_SNAPSHOT"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "V?_612"),
        (200, "V?_200"),
        (-1, "V?_-1"),
    ],
)
def test_a_version_has_the_name_that_java_gives_it(version: int, name: str) -> None:
    assert version_name(version) == name
