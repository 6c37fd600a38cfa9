"""The cluster's certificates and keys, made with the ``openssl`` command (3.0 or newer)."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster.errors import LocalClusterError

DAYS = 365
KUEUE_USER = "system:serviceaccount:kueue-system:kueue-controller-manager"

CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kwok": "/O=localcluster:kwok/CN=kwok",
    # Kueue calls itself what its ServiceAccount would be called, so that the RBAC it ships is what it runs under.
    "kueue": f"/O=system:serviceaccounts/O=system:serviceaccounts:kueue-system/CN={KUEUE_USER}",
}
"""Client certificates: file name -> subject, that is group (O) and user (CN)."""

SERVERS = {
    "apiserver": "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
    "DNS:kubernetes.default.svc",
    "kueue-server": "IP:127.0.0.1,DNS:localhost",
}
"""Server certificates: file name -> subject alternative names."""

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def check_openssl() -> None:
    """Raises LocalClusterError when the ``openssl`` command is absent or too old."""
    if shutil.which("openssl") is None:
        raise LocalClusterError("the command `openssl` is missing: install it (on Debian: apt-get install openssl)")
    said = _openssl("version")
    match = re.match(r"OpenSSL (\d+)", said)
    if match is None or int(match[1]) < 3:
        raise LocalClusterError(f"the local cluster needs OpenSSL 3.0 or newer; this is {said.strip()}")


def make_pki(folder: Path) -> None:
    """Fill ``folder`` with ``ca``, all of CLIENTS and SERVERS (``.crt``, ``.key``), ``sa.key`` and ``sa.pub``."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    _certificate(folder, "ca", "/CN=localcluster", [usage])
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{folder}/sa.key")
    _openssl("pkey", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub")
    subjects = {**CLIENTS, **{name: f"/CN={name}" for name in SERVERS}}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _signed(folder, name, subjects[name]), subjects))


def _signed(folder: Path, name: str, subject: str) -> None:
    kind = "serverAuth" if name in SERVERS else "clientAuth"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={kind}",
    ]
    if name in SERVERS:
        extensions.append(f"subjectAltName={SERVERS[name]}")
    _certificate(folder, name, subject, extensions, "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key")


def _certificate(folder: Path, name: str, subject: str, extensions: list[str], *signer: str) -> None:
    added = [word for extension in extensions for word in ("-addext", extension)]
    files = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"]
    _openssl("req", "-x509", *_NEW_KEY, *files, "-subj", subject, "-days", str(DAYS), *signer, *added)


def _openssl(*words: str) -> str:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    if done.returncode:
        raise LocalClusterError(f"`openssl {words[0]}` failed: {done.stderr.strip()[-500:]}")
    return done.stdout
