"""HTTPS with certificates that are replaced while it runs, and the port with nothing but metrics."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fastapi import FastAPI

from rollout_api import serve
from rollout_api.metrics_app import metrics_app
from rollout_api.serve import TlsFiles, bind, serving, serving_plainly
from rollout_contract.spec import RolloutJob


def write_pair(files: TlsFiles, name: str, *, wrong_key: bool = False) -> None:
    """A certificate for `name`, signed by itself, and its key (or another's)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    kept = ec.generate_private_key(ec.SECP256R1()) if wrong_key else key
    files.key.write_bytes(
        kept.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    found = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(found, "first")
    return found


async def name_at(url: str) -> str:
    """The name in the certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with (
        httpx2.AsyncClient(verify=context, timeout=60) as caller,
        caller.stream("GET", url + "/healthz") as answer,
    ):
        assert answer.status_code == 200
        tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
        certificate = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True))
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


async def test_a_replaced_certificate_is_taken_up(
    app: FastAPI,
    files: TlsFiles,
    monkeypatch: pytest.MonkeyPatch,
    until: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(serve, "RENEW_S", 0.02)
    async with serving(app, bind("127.0.0.1", 0), tls=files) as url:
        assert url.startswith("https://")
        assert await name_at(url) == "first"
        write_pair(files, "broken", wrong_key=True)
        await until(lambda: "cannot be read anew" in caplog.text)
        assert await name_at(url) == "first"
        write_pair(files, "second")

        async def has_second() -> bool:
            return await name_at(url) == "second"

        await until(has_second)


async def test_the_port_with_metrics_tells_of_no_job(app: FastAPI, job: RolloutJob) -> None:
    async with (
        serving_plainly(metrics_app(app), bind("127.0.0.1", 0), grace_s=1.0) as url,
        httpx2.AsyncClient(base_url=url, timeout=60) as stranger,
    ):
        answer = await stranger.get("/metrics")
        assert answer.status_code == 200
        assert "rollout_gateway_event_clients" in answer.text
        assert job.metadata.name not in answer.text
        for path in ("/", "/openapi.json", "/v1/rolloutjobs", "/healthz"):
            assert (await stranger.get(path)).status_code == 404
        assert (await stranger.post("/metrics")).status_code == 405
