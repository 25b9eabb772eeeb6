"""Servers that stand where an API server should be: with some certificate, and with some answer."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUBJECT = "/CN=gate.invalid"
ALWAYS, OVER = ("20200101000000Z", "29990101000000Z"), ("20200101000000Z", "20200102000000Z")


def certificate(folder: Path, name: str, *, dates: tuple[str, str] = ALWAYS, host: str = "IP:127.0.0.1") -> Path:
    """A certificate that signs itself, NAME.crt, and with its key NAME.pem, which is returned."""
    key, config, found = folder / f"{name}.key", folder / f"{name}.cnf", folder / f"{name}.crt"
    (folder / f"{name}.txt").write_text("")
    config.write_text(
        f"[ca]\ndefault_ca=a\n[a]\ndatabase={folder / name}.txt\nnew_certs_dir={folder}\nrand_serial=yes\n"
        f"default_md=sha256\npolicy=p\nx509_extensions=x\n[p]\ncommonName=supplied\n"
        f"[x]\nsubjectAltName={host}\nbasicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\n"
        "[req]\ndistinguished_name=d\n[d]\n"
    )
    request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-subj", SUBJECT]
    _openssl("req", "-new", "-config", config, *request, "-out", folder / f"{name}.csr")
    signed = ["-selfsign", "-keyfile", key, "-in", folder / f"{name}.csr", "-out", found]
    _openssl("ca", "-batch", "-notext", "-config", config, *signed, "-startdate", dates[0], "-enddate", dates[1])
    both = folder / f"{name}.pem"
    both.write_text(key.read_text() + found.read_text())
    return both


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@contextmanager
def answering(
    body: bytes, kind: str = "text/html", code: int = 200, *, cert: Path | None = None, clients: Path | None = None
) -> Iterator[str]:
    """A server's address that answers everything alike; ``clients`` is the authority of those it lets in."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = do_PATCH = do_DELETE = do

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that does not like the certificate goes away."""

    with Server(("127.0.0.1", 0), Answer) as server:
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            if clients:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(clients)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http{'s' if cert else ''}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def kubeconfig(path: Path, server: str, cluster: dict[str, Any] | None = None, **user: Any) -> Path:
    """A kubeconfig whose one context ``x`` leads there."""
    path.write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}], "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    return path
