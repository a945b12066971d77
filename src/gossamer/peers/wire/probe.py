"""Connect to a peer as another peer would, to learn why it cannot be reached, or which certificate it presents."""

import socket
import ssl
from typing import NamedTuple

from gossamer.peers.identity.certificates import CERTIFICATE, KEY, CertificateError, check_certificate, server_name
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member

#: OpenSSL's codes for invalid certificates.
FOREIGN = (18, 19, 20, 21, 7)
NOT_YET, EXPIRED, REVOKED, WRONG_NAME = 9, 10, 23, 62
#: The TLS alerts by which the other end refuses this kit.
ALERTS = {
    "UNKNOWN_CA": "it refuses this kit: its authority is another one",
    "CERTIFICATE_EXPIRED": "it refuses this kit: by its clock the certificate has expired",
    "CERTIFICATE_REVOKED": "it refuses this kit: the certificate was revoked",
    "BAD_CERTIFICATE": "it refuses this kit's certificate",
    "CERTIFICATE_UNKNOWN": "it refuses this kit's certificate",
    "CERTIFICATE_REQUIRED": "it did not get this kit's certificate",
}
#: Kinds of problems: the peer is not there or does not answer as one; a certificate is refused; or it is another
#: network's.
ABSENT, REFUSED, NOT_OF_THIS_NETWORK = "not there yet", "certificate refused", "not of this network"


class Connection(NamedTuple):
    """The result of connecting: the problem, the certificate (PEM) of the other end, and the kind of problem."""

    problem: str | None
    shown: bytes | None = None
    kind: str = ABSENT


def probe(kit: Kit, member: Member, timeout: float = 5.0) -> str | None:
    """Connect to a peer as another peer would; return the problem, None if there is none."""
    return meet(kit, member, timeout).problem


def meet(kit: Kit, member: Member, timeout: float = 5.0) -> Connection:
    """Connect to a peer as another peer would."""
    try:
        with socket.create_connection((member.host, member.port), timeout) as plain:
            return _greet(kit, member, plain)
    except TimeoutError:
        return Connection(f"timed out: no answer within {timeout:g} s")
    except ConnectionRefusedError:
        return Connection("refused: nobody listens there")
    except socket.gaierror as error:
        return Connection(f"no such host ({error.strerror})")
    except OSError as error:
        return Connection(f"not reachable: {error.strerror or error}")


def _greet(kit: Kit, member: Member, plain: socket.socket) -> Connection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=kit.authority.decode())
    context.load_cert_chain(kit.folder / CERTIFICATE, kit.folder / KEY)
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain, server_hostname=server_name(member.name)) as secure:
            encoded = secure.getpeercert(binary_form=True)
            assert encoded is not None  # the context demands one
            shown = ssl.DER_cert_to_PEM_cert(encoded).encode()
            # OpenSSL has checked it, except for the list of revoked certificates.
            check_certificate(shown, kit.authority, kit.crl, member.name)
            # With TLS 1.3 the other end checks our certificate after the handshake: an alert comes only now.
            if secure.recv(1):
                return Connection(None, shown)
            closed = "it closed the connection: it refuses this kit (by its clock?), or is no Gossamer peer"
            return Connection(closed, shown, REFUSED)
    except CertificateError as error:
        return Connection(str(error), kind=REFUSED)
    except ssl.SSLCertVerificationError as error:
        kind = NOT_OF_THIS_NETWORK if error.verify_code in FOREIGN else REFUSED
        return Connection(_certificate_problem(error, member), kind=kind)
    except TimeoutError:
        return Connection("timed out: it accepted the connection and does not answer; is it frozen, or no peer?")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        said = next((words for alert, words in ALERTS.items() if alert in reason), None)
        if said is None:
            return Connection(f"no TLS as expected ({reason.lower().replace('_', ' ')}); is it a Gossamer peer?")
        return Connection(said, kind=NOT_OF_THIS_NETWORK if "UNKNOWN_CA" in reason else REFUSED)


def _certificate_problem(error: ssl.SSLCertVerificationError, member: Member) -> str:
    if error.verify_code in FOREIGN:
        return "its certificate was signed by somebody else than this network's authority"
    if error.verify_code == EXPIRED:
        return "its certificate has expired"
    if error.verify_code == NOT_YET:
        return "its certificate is not valid yet; is a clock wrong?"
    if error.verify_code == REVOKED:
        return "its certificate was revoked"
    if error.verify_code == WRONG_NAME:
        return f"it has another peer's certificate, not that of '{member.name}'"
    return f"its certificate is refused: {error.verify_message}"
