"""The one way in which peers connect: TLS with certificates on both sides. There is no other."""

import logging
from collections.abc import Callable
from typing import Any

import grpc

from gossamer.peers.identity.certificates import server_name
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.store.letters import CHUNK

# Calls that the other end breaks off are not printed either. What goes wrong in a call is caught and counted there.
logging.getLogger("grpc._cython.cygrpc").disabled = True

#: A piece of a letter and what is around it; nothing larger is read.
LARGEST_MESSAGE = CHUNK + (64 << 10)
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    # A dead line is noticed, also where nothing is sent.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    # Nothing is unpacked on the way in: a small message must not become a large one.
    ("grpc.per_message_decompression", 0),
]


def server_credentials(kit: Kit, knocked: Callable[[], None]) -> grpc.ServerCredentials:
    """Nobody is let in without a certificate of the network. `knocked` is called for everybody who tries."""
    ours = grpc.ssl_server_certificate_configuration([(kit.key, kit.certificate)], root_certificates=kit.authority)
    # Asked for another certificate before each handshake; the answer None keeps the one there is. No other hook tells
    # of those who are turned away.
    return grpc.dynamic_ssl_server_credentials(ours, knocked, require_client_authentication=True)


def channel(kit: Kit, member: Member) -> grpc.aio.Channel:
    """A connection to a peer; it is made when first used, and only with who holds that peer's certificate."""
    return grpc.aio.secure_channel(member.address, _credentials(kit), options=_options(member))


def blocking_channel(kit: Kit, member: Member) -> grpc.Channel:
    """The same for a caller that has nothing else to do meanwhile."""
    return grpc.secure_channel(member.address, _credentials(kit), options=_options(member))


def _credentials(kit: Kit) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(kit.authority, kit.key, kit.certificate)


def _options(member: Member) -> list[tuple[str, Any]]:
    return [
        *OPTIONS,
        ("grpc.ssl_target_name_override", server_name(member.name)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
