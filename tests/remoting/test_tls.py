"""TLS and plain connections on one port, and what the properties say about them."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.loopback import (
    ECHO,
    SOON_S,
    Pair,
    Raw,
    frames,
    make_authority,
    make_certificate,
    requests,
    serving,
    small_limits,
    until,
)

from penstock.errors import BadSettings, Unreachable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import connect
from penstock.remoting.tls import PLAIN, TlsMode, client_tls, server_tls

if TYPE_CHECKING:
    from remoting.conftest import Run


class Certificates(NamedTuple):
    authority: Pair
    server: Pair
    client: Pair
    locked: Pair
    stranger: Pair

    def of_server(self, **more: str) -> dict[str, str]:
        named = {"tls.server.certPath": str(self.server.certificate), "tls.server.keyPath": str(self.server.key)}
        return named | {name.replace("_", "."): value for name, value in more.items()}

    def of_client(self, pair: Pair | None = None) -> dict[str, str]:
        named = {"tls.enable": "true", "tls.client.trustCertPath": str(self.authority.certificate)}
        if pair is not None:
            named |= {"tls.client.certPath": str(pair.certificate), "tls.client.keyPath": str(pair.key)}
        return named


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority = make_authority(folder, "authority")
    return Certificates(
        authority,
        make_certificate(folder, "server", authority),
        make_certificate(folder, "client", authority),
        make_certificate(folder, "locked", authority, password="open sesame"),
        make_authority(folder, "stranger"),
    )


def test_plain_and_tls_share_a_port(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        tls = server_tls(certificates.of_server())
        async with serving(tls=tls) as (server, address):
            secure = await connect(address, tls=client_tls(certificates.of_client()))
            plain = await connect(address)
            for connection in (secure, plain):
                body = bytes(range(256)) * 4096
                assert (await connection.request(Command(ECHO, body=body), SOON_S)).body == body
            assert {each.secure for each in server.connections} == {True, False}
            assert (secure.secure, plain.secure) == (True, False)
            secure.close()
            plain.close()
            await until(lambda: len(server.pool) == 0)

    run(main())


def test_many_requests_are_pipelined_through_tls(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        async with (
            serving(tls=server_tls(certificates.of_server())) as (_, address),
            await Raw.open(address, client_tls(certificates.of_client())) as raw,
        ):
            raw.send(frames(requests(3000, body=b"x" * 128)))
            assert [reply.opaque for reply in await raw.replies(3000)] == list(range(1, 3001))

    run(main())


def test_a_peer_that_floods_through_tls_and_does_not_read_waits_too(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        big = {2: lambda _, command: command.reply(0, body=bytes(64 << 10))}
        limits = small_limits(high_water=256 << 10)
        async with (
            serving(big, tls=server_tls(certificates.of_server()), limits=limits) as (server, address),
            await Raw.open(address, client_tls(certificates.of_client())) as raw,
        ):
            raw.stop_reading()
            raw.send(frames(requests(1000, 2)))
            await until(lambda: any(each.congested for each in server.connections))
            async with await Raw.open(address) as other:
                assert (await other.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            assert server.pool.unsent_bytes < 2 << 20
            raw.read_again()
            assert [reply.opaque for reply in await raw.replies(1000)] == list(range(1, 1001))

    run(main())


def test_enforcing_refuses_plain_connections(
    run: Run, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tls = server_tls(certificates.of_server(tls_server_mode="enforcing"))
        async with serving(tls=tls) as (server, address):
            async with await Raw.open(address) as raw:
                raw.send(frames(requests(1)))
                assert await raw.until_closed() == b""
            secure = await connect(address, tls=client_tls(certificates.of_client()))
            assert (await secure.request(Command(ECHO), SOON_S)).code == ResponseCode.SUCCESS
            secure.close()
            await until(lambda: len(server.pool) == 0)

    run(main())
    assert "tls.server.mode is enforcing" in caplog.text


def test_a_port_without_tls_says_so_in_its_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (_, address):
            with pytest.raises(Unreachable):
                await connect(address, tls=client_tls({"tls.enable": "true"}))

    run(main())
    assert "received a TLS handshake on a plain connection" in caplog.text


@pytest.mark.parametrize("who", ["known", "nobody", "stranger"])
def test_a_client_may_have_to_show_a_certificate(run: Run, certificates: Certificates, who: str) -> None:
    trust = {
        "tls.server.trustCertPath": str(certificates.authority.certificate),
        "tls.server.need.client.auth": "require",
    }
    pair = {"known": certificates.client, "nobody": None, "stranger": certificates.stranger}[who]

    async def main() -> None:
        async with serving(tls=server_tls(certificates.of_server() | trust)) as (server, address):
            try:
                connection = await connect(address, tls=client_tls(certificates.of_client(pair)))
                reply = await connection.request(Command(ECHO), SOON_S)
                assert (reply.code, who) == (ResponseCode.SUCCESS, "known")
                connection.close()
            except Unreachable:
                assert who != "known"
            await until(lambda: len(server.pool) == 0)

    run(main())


def test_a_server_that_is_not_trusted_is_refused(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        async with serving(tls=server_tls(certificates.of_server())) as (server, address):
            wrong = {"tls.enable": "true", "tls.client.trustCertPath": str(certificates.stranger.certificate)}
            with pytest.raises(Unreachable, match="cannot connect to"):
                await connect(address, tls=client_tls(wrong))
            with pytest.raises(Unreachable, match="cannot connect to"):
                await connect(address, tls=client_tls({"tls.enable": "true"}))
            without = {"tls.enable": "true", "tls.client.authServer": "false"}
            unchecked = await connect(address, tls=client_tls(without))
            assert (await unchecked.request(Command(ECHO), SOON_S)).code == ResponseCode.SUCCESS
            unchecked.close()
            await until(lambda: len(server.pool) == 0)

    run(main())


def test_whoever_says_nothing_or_stops_in_the_handshake_goes(
    run: Run, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        limits = small_limits(first_frame_s=0.5, handshake_s=0.5)
        async with serving(tls=server_tls(certificates.of_server()), limits=limits) as (server, address):
            for begin in (b"", b"\x16", b"\x16\x03\x01\x00\x05hello"):
                async with await Raw.open(address) as raw:
                    raw.send(begin)
                    await raw.until_closed()
            await until(lambda: len(server.pool) == 0)
            gone = socket.create_connection(address)
            await until(lambda: len(server.pool) == 1)
            gone.close()
            await until(lambda: len(server.pool) == 0)

    run(main())
    assert "no byte arrived within 0.5 s" in caplog.text


def test_a_stop_drops_those_that_are_not_in_yet(run: Run, certificates: Certificates) -> None:
    async def main() -> None:
        async with serving(tls=server_tls(certificates.of_server())) as (server, address):
            silent, half = await Raw.open(address), await Raw.open(address)
            half.send(b"\x16")
            await until(lambda: len(server.pool) == 2)
            async with await Raw.open(address) as other:  # meanwhile the handshake has begun
                assert (await other.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            await server.stop(SOON_S)
            assert len(server.pool) == 0
            for raw in (silent, half):
                await raw.until_closed()
                await raw.close()

    run(main())


def test_the_mode_and_the_files_decide(certificates: Certificates, tmp_path: Path) -> None:
    assert server_tls({}) == PLAIN
    assert server_tls(certificates.of_server(tls_server_mode="DISABLED")) == PLAIN
    assert server_tls(certificates.of_server()).mode is TlsMode.PERMISSIVE
    assert client_tls({}) is None
    for auth, mode in ({}, ssl.CERT_REQUIRED), ({"tls.client.authServer": "false"}, ssl.CERT_NONE):
        context = client_tls({"tls.enable": "true"} | auth)
        assert context is not None
        assert context.verify_mode is mode
    locked = {
        "tls.server.certPath": str(certificates.locked.certificate),
        "tls.server.keyPath": str(certificates.locked.key),
    }
    assert server_tls(locked | {"tls.server.keyPassword": "open sesame"}).context is not None
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for properties, sentence in (
        ({"tls.server.mode": "loud"}, "tls.server.mode is 'loud'; it must be disabled, permissive or enforcing"),
        ({"tls.server.mode": "enforcing"}, "needs tls.server.certPath"),
        ({"tls.server.certPath": "a.pem"}, "needs tls.server.keyPath"),
        ({"tls.server.certPath": "a.pem", "tls.server.keyPath": "a.key"}, "cannot be used: No such file"),
        ({"tls.server.certPath": str(garbage), "tls.server.keyPath": str(garbage)}, "cannot be used"),
        (locked, "cannot be used"),
        (certificates.of_server() | {"tls.server.need.client.auth": "maybe"}, "must be none, optional or require"),
        (certificates.of_server() | {"tls.server.need.client.auth": "require"}, "needs tls.server.trustCertPath"),
        (
            certificates.of_server()
            | {"tls.server.need.client.auth": "optional", "tls.server.trustCertPath": str(garbage)},
            "the trusted certificates cannot be read",
        ),
    ):
        with pytest.raises(BadSettings, match=sentence):
            server_tls(properties)
