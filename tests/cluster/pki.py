"""Certificates and kubeconfigs of one boot: made anew each time, gone with it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.layout import API, CONTROL_IP, KUBECONFIG, PKI, RUN, SERVICE_IP, node_ip
from tests.cluster.processes import run

_API_NAMES = (
    f"IP:127.0.0.1,IP:{CONTROL_IP},IP:{SERVICE_IP},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
    "DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
)
_WEBHOOK_NAMES = "IP:127.0.0.1,DNS:localhost,DNS:training-operator.kubeflow.svc"
_USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
}


def make(nodes: Sequence[str]) -> None:
    """All that a boot needs, in ``PKI``; the kubeconfigs in ``RUN``."""
    PKI.mkdir()
    with ThreadPoolExecutor(8) as pool:
        authorities = [pool.submit(_authority, "ca"), pool.submit(_authority, "front-ca")]
        authorities += [pool.submit(_webhook_authority), pool.submit(_service_accounts)]
        for one in authorities:
            one.result()
        certificates = [pool.submit(certificate, name, *who) for name, who in _USERS.items()]
        certificates += [
            pool.submit(certificate, "apiserver", "kube-apiserver", "", _API_NAMES),
            pool.submit(certificate, "front", "front-proxy-client", "", "", "front-ca"),
            pool.submit(certificate, "webhook", "webhooks", "", _WEBHOOK_NAMES, "webhook-ca"),
        ]
        for node in nodes:
            names = f"IP:{node_ip(node)},DNS:{node}"
            certificates.append(pool.submit(certificate, node, f"system:node:{node}", "system:nodes", names))
        for done in certificates:
            done.result()
    kubeconfig(KUBECONFIG, "admin")
    for name in ("controller-manager", "scheduler", "kube-proxy", *nodes):
        kubeconfig(RUN / f"{name}.kubeconfig", name)


def certificate(file: str, name: str, group: str = "", names: str = "", authority: str = "ca") -> None:
    """``PKI/<file>.crt`` and ``.key`` for a user (``name`` and ``group``) or a server (its ``names``)."""
    subject = (f"/O={group}" if group else "") + f"/CN={name}"
    made, key, request = PKI / f"{file}.crt", PKI / f"{file}.key", PKI / f"{file}.csr"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("openssl", "req", *curve, "-subj", subject, "-keyout", key, "-out", request)
    extensions = "keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n"
    settings = PKI / f"{file}.ext"
    settings.write_text(extensions + (f"subjectAltName={names}\n" if names else ""))
    signer = ("-CA", PKI / f"{authority}.crt", "-CAkey", PKI / f"{authority}.key", "-set_serial", _serial())
    run("openssl", "x509", "-req", "-days", "3650", "-in", request, *signer, "-extfile", settings, "-out", made)
    request.unlink()
    settings.unlink()


def kubeconfig(path: Path, user: str) -> Path:
    """For the user whose certificate is ``PKI/<user>.crt``; everything is in the one file."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "allranks", "cluster": {"server": API, "certificate-authority-data": encoded("ca.crt")}}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": encoded(f"{user}.crt"),
                    "client-key-data": encoded(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "allranks", "context": {"cluster": "allranks", "user": user}}],
        "current-context": "allranks",
    }
    path.touch(0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def encoded(file: str) -> str:
    """A file of ``PKI`` in base64, as Kubernetes objects hold it."""
    return base64.b64encode((PKI / file).read_bytes()).decode()


def _serial() -> str:
    return "0x" + Path("/proc/sys/kernel/random/uuid").read_text().strip().replace("-", "")[:31]


def _authority(name: str) -> None:
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", PKI / f"{name}.key")
    _self_signed(name, f"allranks-{name}")


def _webhook_authority() -> None:
    """The Training Operator's rotation takes only an RSA key in PKCS#1, and a CA that has this name twice."""
    run("openssl", "genrsa", "-traditional", "-out", PKI / "webhook-ca.key", "2048")
    _self_signed("webhook-ca", "training-operator-ca", "-addext", "subjectAltName=DNS:training-operator-ca")


def _self_signed(name: str, subject: str, *more: str) -> None:
    usage = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature,keyEncipherment")
    key, made = PKI / f"{name}.key", PKI / f"{name}.crt"
    run("openssl", "req", "-x509", "-new", "-key", key, "-days", "3650", "-subj", f"/CN={subject}", *usage, *more,
        "-out", made)  # fmt: skip


def _service_accounts() -> None:
    run("openssl", "genrsa", "-out", PKI / "sa.key", "2048")
    run("openssl", "rsa", "-in", PKI / "sa.key", "-pubout", "-out", PKI / "sa.pub")
