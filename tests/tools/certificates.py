"""Certificates for one test run: an authority, and a server on 127.0.0.1 that it vouches for."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Files of one authority and of one server certificate by it."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(openssl: str, folder: Path, host: str = "IP:127.0.0.1") -> Certificates:
    """Make an authority and a certificate for a host with the openssl command."""
    folder.mkdir(exist_ok=True)
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    signer = folder / "ca.key"

    def run(*arguments: str | Path) -> None:
        subprocess.run([openssl, *map(str, arguments)], check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(
        "req", "-x509", *new_key, "-keyout", signer, "-out", made.authority, "-days", "2", "-subj", "/CN=test authority"
    )
    request = folder / "server.csr"
    run("req", *new_key, "-keyout", made.key, "-out", request, "-subj", "/CN=node")
    names = folder / "names"
    names.write_text(f"subjectAltName={host}\n")
    run(
        *("x509", "-req", "-in", request, "-CA", made.authority, "-CAkey", signer, "-CAcreateserial"),
        *("-out", made.certificate, "-days", "2", "-extfile", names),
    )
    return made
