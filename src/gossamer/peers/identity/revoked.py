"""The list of revoked certificates in a kit, reloaded when it changes: a running peer need not be restarted."""

from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gossamer.peers.identity.certificates import CRL, CertificateError, read_certificate, read_crl
from gossamer.peers.identity.kit import Kit


class Revoked:
    """The serial numbers on the list. A list that cannot be read, or is older than the last one, is ignored."""

    def __init__(self, kit: Kit, log: Callable[..., None]) -> None:
        self._path, self._log = kit.folder / CRL, log
        self._authority = read_certificate(kit.authority, "authority")
        self._list = read_crl(kit.crl, self._authority)
        self._last_read = kit.crl
        self._changed = 0

    def __len__(self) -> int:
        self._reload()
        return len(self._list)

    @property
    def number(self) -> int:
        """The number of the list, which grows with each new one."""
        self._reload()
        return _number(self._list)

    @property
    def pem(self) -> bytes:
        """The list, in PEM."""
        return self._list.public_bytes(serialization.Encoding.PEM)

    def __contains__(self, serial: int) -> bool:
        self._reload()
        return self._list.get_revoked_certificate_by_serial_number(serial) is not None

    def _reload(self) -> None:
        try:
            if (changed := self._path.stat().st_mtime_ns) == self._changed:
                return
            self._changed, found = changed, self._path.read_bytes()
        except OSError:  # being replaced, or gone: the last list still holds
            return
        if found == self._last_read:
            return
        self._last_read = found
        try:
            newer = read_crl(found, self._authority, str(self._path))
        except CertificateError as error:
            self._log("list of revoked certificates ignored", reason=str(error))
            return
        if _number(newer) > _number(self._list):
            self._list = newer
            self._log("list of revoked certificates read", revoked=len(list(newer)))


def _number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
