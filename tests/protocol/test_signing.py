from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from penstock.protocol import Command, FrameReader, encode
from penstock.protocol.signing import account_of, is_signed_with, sign, signature


def test_the_signature_is_over_the_values_in_the_order_of_their_names_and_the_body() -> None:
    ext = {"topic": "T", "AccessKey": "ak", "queueId": "3", "Signature": "ignored", "batch": "true"}
    expected = hmac.new(b"sk", b"ak" + b"true" + b"3" + b"T" + b"body", hashlib.sha1).digest()
    assert signature(ext, b"body", "sk") == base64.b64encode(expected).decode()


def test_a_known_signature() -> None:
    # RFC 2202, test case 2, in Base64
    assert signature({"a": "what do ya want "}, b"for nothing?", "Jefe") == "7/zfauXrL6LSdBbV8YTfnCWafHk="


def test_what_javas_own_hook_signed() -> None:
    ext = {"a": "组", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "0", "i": "A\x01b"}
    ext |= {"k": "false", "m": "false", "AccessKey": "ak", "SecurityToken": "tok"}
    assert signature(ext, b"\x00\xff\x03", "sk") == "Dfd87upvh8+YYISjLijxLdY1QM8="


@pytest.mark.parametrize("binary", [False, True])
def test_a_signed_command_is_recognised_after_its_journey(binary: bool) -> None:
    command = Command(310, {"a": "组", "b": "T", "e": "0"}, b"\x00\xff", binary=binary)
    sign(command, "ak", "sk", security_token="token")
    (received,) = FrameReader().feed(encode(command))
    assert account_of(received) == "ak"
    assert received.ext["SecurityToken"] == "token"
    assert is_signed_with(received, "sk")
    assert not is_signed_with(received, "another")


@pytest.mark.parametrize("change", ["a", "AccessKey", "body", "new", "Signature", "nothing signed"])
def test_whatever_is_changed_breaks_the_signature(change: str) -> None:
    command = Command(310, {"a": "g", "b": "T"}, b"body")
    sign(command, "ak", "sk")
    if change == "body":
        command.body = b"bodY"
    elif change == "nothing signed":
        del command.ext["Signature"]
    else:
        command.ext[change] = "x"
    assert not is_signed_with(command, "sk")


def test_numbers_and_booleans_are_signed_as_the_client_wrote_them() -> None:
    expected = base64.b64encode(hmac.new(b"sk", b"ak" + b"1.50" + b"0" + b"true", hashlib.sha1).digest()).decode()
    header = (
        f'{{"code":310,"extFields":{{"x":true,"n":0,"f":1.50,"AccessKey":"ak","Signature":"{expected}"}}}}'.encode()
    )
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    (received,) = FrameReader().feed(frame)
    assert is_signed_with(received, "sk")


@pytest.mark.parametrize("counted", [False, True])
def test_an_old_client_does_not_sign_the_mark_of_a_unique_key_and_a_new_one_does(counted: bool) -> None:
    mark = {"_UNIQUE_KEY_QUERY": "true"}
    command = Command(12, {"topic": "T", **(mark if counted else {})})
    sign(command, "ak", "sk")
    command.ext |= mark
    assert is_signed_with(command, "sk")
    assert not is_signed_with(command, "another")


@pytest.mark.parametrize("ext", [{}, {"AccessKey": ""}, {"AccessKey": "", "Signature": "x"}])
def test_a_command_with_an_empty_account_is_anonymous(ext: dict[str, str]) -> None:
    assert account_of(Command(105, ext)) is None


def test_a_signature_in_any_script_is_compared_and_not_an_error() -> None:
    assert not is_signed_with(Command(105, {"AccessKey": "ak", "Signature": "签名\udc80"}), "sk")
