"""The list of revoked certificates, while a peer runs."""

from pathlib import Path
from typing import Any

from cryptography import x509

from gossamer import Experiment
from gossamer.peers.identity.certificates import CRL, Authority
from gossamer.peers.identity.kit import open_kit, revoke
from gossamer.peers.identity.revoked import Revoked
from networks import make_kits


def test_a_list_that_comes_while_a_peer_runs(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, Experiment(method="dfedavg", clients=3, dataset="digits", model="softmax"))
    said: list[tuple[str, dict[str, Any]]] = []
    revoked = Revoked(open_kit(kits[0]), lambda event, **about: said.append((event, about)))
    serials = [x509.load_pem_x509_certificate((kit / "certificate.pem").read_bytes()).serial_number for kit in kits]
    older = (kits[0] / CRL).read_bytes()
    assert not any(serial in revoked for serial in serials)
    revoke(tmp_path / "kits", "p1")
    assert [serial in revoked for serial in serials] == [False, True, False]
    assert said == [("list of revoked certificates read", {"revoked": 1})]
    (kits[0] / CRL).write_bytes(b"nothing")
    assert [serial in revoked for serial in serials] == [False, True, False]
    assert "unreadable" in said[-1][1]["reason"]
    (kits[0] / CRL).write_bytes(Authority.create().files[CRL])  # of another network
    assert serials[1] in revoked
    assert "signed by somebody else" in said[-1][1]["reason"]
    (kits[0] / CRL).write_bytes(older)  # who can write here cannot take a name from the list by putting an older one
    assert serials[1] in revoked
    (kits[0] / CRL).unlink()
    assert serials[1] in revoked
    assert len(said) == 3
