"""The network's own certificate authority, a certificate for every peer, and the list of revoked certificates.

A peer's name is the DNS name `alice.peers.gossamer` in its certificate. The common name is informative only, and the
address of its machine does not identify a peer.
"""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gossamer.errors import GossamerError
from gossamer.peers.identity.roster import SUFFIX

DAY = timedelta(days=1)
#: Certificates are valid from a day before they are issued: clocks may be off by hours.
EARLY = DAY
MOST_DAYS = 3650
AUTHORITY_DAYS = MOST_DAYS + 2

KEY, CERTIFICATE, CRL = "key.pem", "certificate.pem", "crl.pem"


class CertificateError(GossamerError):
    """An invalid certificate, key or list of revoked certificates."""


class Issued(NamedTuple):
    """A private key and its certificate, as PEM."""

    key: bytes
    certificate: bytes


@dataclass(frozen=True)
class Authority:
    """The network's certificate authority: its key decides which peers belong to the network."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    crl: x509.CertificateRevocationList

    @classmethod
    def create(cls, network: str = "gossamer") -> "Authority":
        """A new authority without revoked certificates."""
        key, now = ec.generate_private_key(ec.SECP256R1()), _now()
        name = _subject(f"{network} authority"[:64])
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLY)
            .not_valid_after(now + AUTHORITY_DAYS * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(public, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate, _signed_list(key, certificate, [], 1))

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """The authority in a folder that `write_kits` has written."""
        try:
            key, certificate, crl = ((folder / name).read_bytes() for name in (KEY, CERTIFICATE, CRL))
        except OSError as error:
            raise CertificateError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
        private = read_key(key, str(folder / KEY))
        found = read_certificate(certificate, str(folder / CERTIFICATE))
        if private.public_key() != found.public_key():
            raise CertificateError(f"{folder / KEY}: is not the key of {folder / CERTIFICATE}")
        return cls(private, found, read_crl(crl, found, str(folder / CRL)))

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of the authority's folder."""
        return {KEY: _key_pem(self.key), CERTIFICATE: _pem(self.certificate), CRL: _pem(self.crl)}

    def issue(self, name: str, host: str, days: int = 365, not_before: datetime | None = None) -> Issued:
        """A new key and certificate for the peer `name` at `host`, valid for so many days."""
        if not 1 <= days <= MOST_DAYS:
            raise CertificateError(f"days: a certificate is valid for 1 to {MOST_DAYS} days (got {days})")
        if (last := self.certificate.not_valid_after_utc) <= _now():
            raise CertificateError(
                f"the authority's certificate expired since {moment(last)}, so it can give out no others; a new one "
                "comes from 'gossamer network create'"
            )
        key, start = ec.generate_private_key(ec.SECP256R1()), not_before or _now() - EARLY
        end = min((start if not_before else _now()) + days * DAY, last)
        signer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(name)), _place(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Issued(_key_pem(key), _pem(certificate))

    def revoke(self, certificate: bytes) -> "Authority":
        """The authority with this certificate (PEM) on its list of revoked ones."""
        found = read_certificate(certificate)
        if not _signed_by(found, self.certificate):
            raise CertificateError("the certificate to revoke was signed by another network's authority")
        if self.crl.get_revoked_certificate_by_serial_number(found.serial_number) is not None:
            return self
        entry = x509.RevokedCertificateBuilder().serial_number(found.serial_number).revocation_date(_now()).build()
        number = self.crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        longer = _signed_list(self.key, self.certificate, [*self.crl, entry], number + 1)
        return Authority(self.key, self.certificate, longer)


def check_certificate(
    certificate: bytes, authority: bytes, crl: bytes | None, name: str, now: datetime | None = None
) -> None:
    """Raise an error for an invalid certificate (PEM), or one of another peer than `name`."""
    now = now or datetime.now(UTC)
    found, signer = read_certificate(certificate), read_certificate(authority, "the authority's certificate")
    if not _signed_by(found, signer):
        raise CertificateError("certificate signed by somebody else than this network's authority")
    for one, what, command in ((found, "certificate", "renew"), (signer, "the authority's certificate", "create")):
        if now < one.not_valid_before_utc:
            raise CertificateError(
                f"{what} not valid before {moment(one.not_valid_before_utc)} (here it is {moment(now)}: is the clock "
                "right?)"
            )
        if now > one.not_valid_after_utc:
            raise CertificateError(
                f"{what} expired since {moment(one.not_valid_after_utc)} (now {moment(now)}); a new one comes from "
                f"'gossamer network {command}'"
            )
    if (given := identity(certificate)) != name:
        raise CertificateError(f"certificate is of '{given}', not of '{name}'")
    if crl is not None:
        entry = read_crl(crl, signer).get_revoked_certificate_by_serial_number(found.serial_number)
        if entry is not None:
            raise CertificateError(f"certificate of '{name}' revoked since {moment(entry.revocation_date_utc)}")


def identity(certificate: bytes) -> str:
    """The peer that a certificate (PEM) names, unverified: see `check_certificate`."""
    found = read_certificate(certificate)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    peers = [name.removesuffix(SUFFIX) for name in names.get_values_for_type(x509.DNSName) if name.endswith(SUFFIX)]
    if len(peers) != 1:
        raise CertificateError(f"certificate names {len(peers) or 'no'} peers, expected one name NAME{SUFFIX}")
    return peers[0]


def server_name(name: str) -> str:
    """The DNS name in a peer's certificate, expected of the other end of a connection."""
    return f"{name}{SUFFIX}"


def valid_until(certificate: bytes) -> datetime:
    """When a certificate (PEM) expires."""
    return read_certificate(certificate).not_valid_after_utc


def is_newer(certificate: bytes, other: bytes) -> bool:
    """Whether a certificate (PEM) was issued after another one, or differs and is of the same second."""
    one, two = read_certificate(certificate), read_certificate(other)
    return one != two and one.not_valid_before_utc >= two.not_valid_before_utc


def moment(when: datetime) -> str:
    """A time as messages show it."""
    return f"{when:%Y-%m-%d %H:%M} UTC"


def check_key(key: bytes, certificate: bytes, where: str = "key") -> None:
    """Raise an error for a private key (PEM) that is not the certificate's."""
    if read_key(key, where).public_key() != read_certificate(certificate).public_key():
        raise CertificateError(f"{where}: is the key of another certificate; copy the kit anew, whole")


def read_certificate(pem: bytes, where: str = "certificate") -> x509.Certificate:
    """Parse a single certificate from PEM."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        # Parsed lazily, so a malformed field could fail later: read all that is needed later.
        _ = [one.extensions for one in found]
        keys = [one.public_key() for one in found]
    except Exception as error:  # the parser raises many types of errors
        raise CertificateError(f"{where}: unreadable: {_first_line(error)}; expected one certificate in PEM") from None
    if len(found) != 1:
        raise CertificateError(f"{where}: holds {len(found)} certificates, expected one")
    if not isinstance(keys[0], ec.EllipticCurvePublicKey):
        raise CertificateError(f"{where}: its key is not of the kind that this network uses (EC P-256)")
    return found[0]


def read_key(pem: bytes, where: str = "key") -> ec.EllipticCurvePrivateKey:
    """Parse a private key from PEM."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except Exception as error:  # the parser raises many types of errors
        raise CertificateError(f"{where}: unreadable: {_first_line(error)}; expected a private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{where}: not a key of the kind that this network uses (EC P-256)")
    return key


def read_crl(pem: bytes, authority: x509.Certificate, where: str = "list of revoked certificates") -> (
    x509.CertificateRevocationList
):  # fmt: skip
    """Parse the list of revoked certificates from PEM, which the authority must have signed."""
    try:
        crl = x509.load_pem_x509_crl(pem)
        signed = crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # an EC key: see above
    except Exception as error:  # the parser raises many types of errors
        raise CertificateError(f"{where}: unreadable: {_first_line(error)}; expected a CRL in PEM") from None
    if not signed or crl.issuer != authority.subject:
        raise CertificateError(f"{where}: signed by somebody else than this network's authority")
    return crl


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _signed_list(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, entries: list[x509.RevokedCertificate], number: int
) -> x509.CertificateRevocationList:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(_now() - EARLY)
        # Valid until replaced: peers that do not get a new list go on.
        .next_update(authority.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for entry in entries:
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256())


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(thing: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return thing.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0].split(". See")[0].removesuffix(".")
