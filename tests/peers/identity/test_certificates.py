"""Certificates: what is in them, and every reason to refuse one."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from gossamer.peers.identity.certificates import (
    Authority,
    CertificateError,
    check_certificate,
    check_key,
    identity,
    is_newer,
    read_certificate,
    valid_until,
)

AUTHORITY = Authority.create()
ROOT, CRL = AUTHORITY.files["certificate.pem"], AUTHORITY.files["crl.pem"]
ALICE = AUTHORITY.issue("alice", "10.0.0.1")
NOW, DAY = datetime.now(UTC), timedelta(days=1)


def test_what_is_in_a_certificate() -> None:
    check_certificate(ALICE.certificate, ROOT, CRL, "alice")
    assert identity(ALICE.certificate) == "alice"
    found = x509.load_pem_x509_certificate(ALICE.certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["alice.peers.gossamer"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert x509.load_pem_x509_certificate(ROOT).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=364) < valid_until(ALICE.certificate) - NOW <= timedelta(days=365)
    check_key(ALICE.key, ALICE.certificate)


@pytest.mark.parametrize("host", ["::1", "gpu1.example.org", "my_host"])
def test_any_host(host: str) -> None:
    pair = AUTHORITY.issue("bob", host)
    check_certificate(pair.certificate, ROOT, CRL, "bob")


def test_a_host_called_like_a_peer_is_not_that_peer() -> None:
    assert identity(AUTHORITY.issue("bob", "alice").certificate) == "bob"


def test_clocks_may_be_a_day_off_but_not_more() -> None:
    check_certificate(ALICE.certificate, ROOT, CRL, "alice", NOW - timedelta(hours=23))
    with pytest.raises(CertificateError, match=r"certificate not valid before 20\d\d-.* UTC .*is the clock right"):
        check_certificate(ALICE.certificate, ROOT, CRL, "alice", NOW - 2 * DAY)
    check_certificate(ALICE.certificate, ROOT, CRL, "alice", NOW + 364 * DAY)
    with pytest.raises(CertificateError, match=r"certificate expired since 20\d\d-"):
        check_certificate(ALICE.certificate, ROOT, CRL, "alice", NOW + 366 * DAY)


def test_which_of_two_is_newer() -> None:
    later = AUTHORITY.issue("alice", "10.0.0.1", 9, not_before=NOW).certificate
    assert is_newer(later, ALICE.certificate)
    assert not is_newer(ALICE.certificate, later)
    assert not is_newer(later, later)


def test_an_old_authority() -> None:
    late = AUTHORITY.issue("alice", "10.0.0.1", 3650, not_before=NOW + 3000 * DAY)
    with pytest.raises(CertificateError, match="expired since"):
        check_certificate(late.certificate, ROOT, CRL, "alice", NOW + 3700 * DAY)


@pytest.mark.parametrize("days", [0, -1, 3651, 10**9])
def test_days_out_of_range(days: int) -> None:
    with pytest.raises(CertificateError, match=f"days: a certificate is valid for 1 to 3650 days .got {days}."):
        AUTHORITY.issue("alice", "10.0.0.1", days)


def test_signed_by_somebody_else() -> None:
    other = Authority.create()  # with the very same name
    for certificate in (other.issue("alice", "10.0.0.1").certificate, other.files["certificate.pem"]):
        with pytest.raises(CertificateError, match="signed by somebody else"):
            check_certificate(certificate, ROOT, CRL, "alice")
    with pytest.raises(CertificateError, match="list of revoked certificates: signed by somebody else"):
        check_certificate(ALICE.certificate, ROOT, other.files["crl.pem"], "alice")
    stranger = trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("alice.peers.gossamer")
    with pytest.raises(CertificateError, match="signed by somebody else"):
        check_certificate(stranger.cert_chain_pems[0].bytes(), ROOT, CRL, "alice")


def test_names_that_are_not_the_peers() -> None:
    with pytest.raises(CertificateError, match="certificate is of 'alice', not of 'bob'"):
        check_certificate(ALICE.certificate, ROOT, CRL, "bob")
    with pytest.raises(CertificateError, match="names no peers"):  # the authority signs itself, and is no peer
        check_certificate(ROOT, ROOT, CRL, "gossamer authority")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    several = authority.issue_cert("alice.peers.gossamer", "bob.peers.gossamer", common_name="alice")
    plain = authority.issue_cert("alice", common_name="alice")
    for certificate, number in ((several, "2"), (plain, "no")):
        with pytest.raises(CertificateError, match=f"names {number} peers"):
            check_certificate(certificate.cert_chain_pems[0].bytes(), authority.cert_pem.bytes(), None, "alice")


def test_revoked() -> None:
    shorter = AUTHORITY.revoke(AUTHORITY.issue("bob", "::1").certificate)
    longer = shorter.revoke(ALICE.certificate)
    check_certificate(ALICE.certificate, ROOT, shorter.files["crl.pem"], "alice")
    with pytest.raises(CertificateError, match=r"certificate of 'alice' revoked since 20\d\d-"):
        check_certificate(ALICE.certificate, ROOT, longer.files["crl.pem"], "alice")
    assert len(longer.crl) == 2
    assert longer.revoke(ALICE.certificate) is longer
    number = longer.crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    assert number == 3
    with pytest.raises(CertificateError, match="another network"):
        AUTHORITY.revoke(Authority.create().issue("alice", "::1").certificate)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\x80\x04\x95", ALICE.key, CRL, ALICE.certificate[:-60], ALICE.certificate.replace(b"M", b"N")],
)
def test_unreadable(content: bytes) -> None:
    with pytest.raises(CertificateError, match=r"certificate: unreadable: .*expected one certificate in PEM"):
        check_certificate(content, ROOT, CRL, "alice")
    with pytest.raises(CertificateError, match="unreadable"):
        check_certificate(ALICE.certificate, content, CRL, "alice")


def test_other_files_in_the_place_of_the_right_one() -> None:
    with pytest.raises(CertificateError, match="holds 2 certificates"):
        read_certificate(ALICE.certificate + ROOT)
    with pytest.raises(CertificateError, match="expected a CRL"):
        check_certificate(ALICE.certificate, ROOT, ROOT, "alice")
    with pytest.raises(CertificateError, match=r"key.pem: is the key of another certificate"):
        check_key(AUTHORITY.issue("bob", "::1").key, ALICE.certificate, "key.pem")
    with pytest.raises(CertificateError, match="expected a private key"):
        check_key(ALICE.certificate, ALICE.certificate)
    rsa = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("alice.peers.gossamer", key_type=trustme.KeyType.RSA)
    with pytest.raises(CertificateError, match="EC P-256"):
        check_key(rsa.private_key_pem.bytes(), ALICE.certificate)
    with pytest.raises(CertificateError, match="EC P-256"):
        read_certificate(rsa.cert_chain_pems[0].bytes())


def test_an_authority_comes_back_from_its_folder(tmp_path: Path) -> None:
    for name, content in AUTHORITY.files.items():
        (tmp_path / name).write_bytes(content)
    again = Authority.load(tmp_path)
    check_certificate(again.issue("bob", "::1").certificate, ROOT, CRL, "bob")
    (tmp_path / "key.pem").write_bytes(ALICE.key)
    with pytest.raises(CertificateError, match=r"key\.pem: is not the key of"):
        Authority.load(tmp_path)
    (tmp_path / "key.pem").unlink()
    with pytest.raises(CertificateError, match=r"key\.pem: cannot be read: No such file"):
        Authority.load(tmp_path)
