"""Certificates for one test run, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Pair(NamedTuple):
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str) -> Pair:
    """A certificate that vouches for others."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl("req", "-x509", *_new_key(pair.key), "-subj", f"/CN={name}", "-days", "2", "-out", str(pair.certificate))
    return pair


def make_certificate(folder: Path, name: str, authority: Pair, password: str = "") -> Pair:
    """A certificate that the authority vouches for; its key is encrypted if there is a password."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    request = folder / f"{name}.csr"
    _openssl("req", *_new_key(pair.key), "-subj", f"/CN={name}", "-out", str(request))
    signing = ("-CA", str(authority.certificate), "-CAkey", str(authority.key), "-CAcreateserial", "-days", "2")
    _openssl("x509", "-req", "-in", str(request), *signing, "-out", str(pair.certificate))
    if password:
        _openssl("ec", "-in", str(pair.key), "-aes128", "-passout", f"pass:{password}", "-out", str(pair.key))
    return pair


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is needed to make certificates")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=60)
