"""The key and certificate of a kit, reloaded when they change: a running peer need not be restarted."""

from dataclasses import replace

from gossamer.peers.identity.certificates import CERTIFICATE, KEY, CertificateError, check_certificate, check_key
from gossamer.peers.identity.kit import Kit


class RenewedKit:
    """A kit with its newest key and certificate. Files that are invalid, or half replaced, are ignored."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self._paths = (kit.folder / KEY, kit.folder / CERTIFICATE)
        self._changed = self._times()

    def reload(self) -> bool:
        """Read the files again if they have changed; return whether there is a new certificate."""
        try:
            if (changed := self._times()) == self._changed:
                return False
            key, certificate = (path.read_bytes() for path in self._paths)
            check_key(key, certificate)
            check_certificate(certificate, self.kit.authority, None, self.kit.name)
        except (OSError, CertificateError):
            return False
        self._changed = changed
        new = certificate != self.kit.certificate
        self.kit = replace(self.kit, key=key, certificate=certificate)
        return new

    def _times(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in self._paths)
