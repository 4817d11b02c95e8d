"""A server as production has it: Redis behind TLS with a private authority and a password, in a namespace of its own.

The server of the images speaks no TLS, so a container beside it ends TLS for it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from installed import POD_SECURITY, SECURITY, Commands, Document, image

PROXY = """
import asyncio, ssl

async def copy(source, sink):
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()

async def serve(reader, writer):
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", 6379)
    await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    server = await asyncio.start_server(serve, "0.0.0.0", 6380, ssl=context)
    await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Authority:
    """A private one. `pem` is its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> Authority:
        """With a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(key, _signed("authority", key, None, key))

    @property
    def pem(self) -> str:
        """Its certificate."""
        return _pem(self.certificate)

    def pair(self, *names: str) -> tuple[str, str]:
        """Certificate and key for some host names."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(names[0][:60], key, self, self.key, names)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return _pem(certificate), text.decode()


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: Authority | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: tuple[str, ...] = (),
) -> x509.Certificate:
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(issuer.certificate.subject if issuer else own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternative, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def tls_secret(name: str, pair: tuple[str, str]) -> Document:
    """A Secret of type kubernetes.io/tls."""
    data = {"tls.crt": pair[0], "tls.key": pair[1]}
    return secret(name, data, "kubernetes.io/tls")


def secret(name: str, data: dict[str, str], kind: str = "Opaque") -> Document:
    """A Secret."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": kind,
        "stringData": data,
    }


def start(space: Commands, authority: Authority, password: str) -> str:
    """The server's host, which answers on port 6380, TLS alone."""
    host = f"server.{space.namespace}.svc"
    space("create", "configmap", "proxy", f"--from-literal=proxy.py={PROXY}")
    labels = {"app": "server"}
    common = {"image": image("rollout-redis"), "imagePullPolicy": "IfNotPresent", "securityContext": SECURITY}
    server = {
        "name": "server",
        "args": ["--bind", "127.0.0.1"],
        "env": [{"name": "REDIS_PASSWORD", "value": password}],
        "readinessProbe": {"exec": {"command": ["redis-ready"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    proxy = {
        "name": "tls",
        "command": ["python3", "/proxy/proxy.py"],
        "readinessProbe": {"tcpSocket": {"port": 6380}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}, {"name": "proxy", "mountPath": "/proxy"}],
    }
    pod = {
        "securityContext": {**POD_SECURITY, "fsGroup": 65532},
        "automountServiceAccountToken": False,
        "containers": [{**common, **server}, {**common, **proxy}],
        "volumes": [
            {"name": "data", "emptyDir": {}},
            {"name": "tls", "secret": {"secretName": "tls"}},
            {"name": "proxy", "configMap": {"name": "proxy"}},
        ],
    }
    space.apply(
        tls_secret("tls", authority.pair(host)),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "server", "labels": labels},
            "spec": pod,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server"},
            "spec": {"selector": labels, "ports": [{"port": 6380}]},
        },
    )
    space("wait", "pod/server", "--for=condition=Ready", "--timeout=60s")
    return host
