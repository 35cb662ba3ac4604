"""OpenSSH certificates: a host's is judged as ssh judges it; paramiko takes its key and checks nothing else."""

from __future__ import annotations

import base64
import time

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    SSHCertPublicKeyTypes,
    load_ssh_public_identity,
)

SUFFIX = "-cert-v01@openssh.com"


def load(kind: str, blob: bytes) -> SSHCertificate | None:
    """None for what can't be read: the host is then known by its plain key or not at all."""
    try:
        found = load_ssh_public_identity(f"{kind} ".encode() + base64.b64encode(blob))
    except (ValueError, UnsupportedAlgorithm):
        return None
    return found if isinstance(found, SSHCertificate) else None


def authority(certificate: SSHCertificate) -> bytes:
    """The public key that signed it, as on the wire."""
    return _wire(certificate.signature_key())


def plain_key(certificate: SSHCertificate) -> bytes:
    """The public key that it is about, as on the wire."""
    return _wire(certificate.public_key())


def _wire(key: SSHCertPublicKeyTypes) -> bytes:
    return base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])


def fault(certificate: SSHCertificate, name: str, algorithms: tuple[str, ...], now: float | None = None) -> str:
    """Why it doesn't vouch for `name` now; empty when it does. `algorithms` are CASignatureAlgorithms."""
    now = time.time() if now is None else now
    principals = [principal.decode(errors="replace") for principal in certificate.valid_principals]
    if certificate.type is not SSHCertificateType.HOST:
        return "it is a user's certificate"
    if principals and name not in principals:
        return f"it is for {', '.join(principals)}"
    if not certificate.valid_after <= now < certificate.valid_before:
        return "it is not valid yet" if now < certificate.valid_after else "it has expired"
    if certificate.critical_options:
        return "it has critical options that are not known"
    if algorithms and (algorithm := signature_algorithm(certificate)) not in algorithms:
        return f"its CA signed with {algorithm}, which CASignatureAlgorithms doesn't allow"
    try:
        certificate.verify_cert_signature()
    except InvalidSignature:
        return "its signature is wrong"
    return ""


def signature_algorithm(certificate: SSHCertificate) -> str:
    """Of the CA's signature, the certificate's last field, which begins with its name."""
    blob, key = base64.b64decode(certificate.public_bytes().split()[1]), authority(certificate)
    signature = blob.rpartition(len(key).to_bytes(4) + key)[2][4:]
    return signature[4 : 4 + int.from_bytes(signature[:4])].decode(errors="replace")


def public_key(line: bytes) -> bytes:
    """The plain key of a line as in a .pub file, as on the wire. ValueError when it is none."""
    kind, text = line.split()[:2]
    blob = base64.b64decode(text, validate=True)
    if blob[:4] != len(kind).to_bytes(4) or blob[4 : 4 + len(kind)] != kind:
        raise ValueError("the key is of another type than its line says")
    try:
        found = load_ssh_public_identity(line)
    except UnsupportedAlgorithm:  # a security key's, say: cryptography knows fewer types than ssh
        return blob
    return plain_key(found) if isinstance(found, SSHCertificate) else blob
