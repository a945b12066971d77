"""Connections between peers: always TLS with certificates on both sides."""

import logging
from collections.abc import Callable
from typing import Any

import grpc

from gossamer.peers.identity.certificates import server_name
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.store.letters import CHUNK

# gRPC would print calls that the other end breaks off. Failures are caught and counted where the call is made.
logging.getLogger("grpc._cython.cygrpc").disabled = True

#: The largest message that is read: a piece of a letter and its envelope.
LARGEST_MESSAGE = CHUNK + (64 << 10)
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    # Notice a dead connection, also when nothing is sent.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    # No decompression: a small message must not become a large one.
    ("grpc.per_message_decompression", 0),
]


def server_credentials(kit: Kit, on_connection: Callable[[], Kit | None]) -> grpc.ServerCredentials:
    """Require a certificate of the network.

    `on_connection` is called for each attempt to connect; it returns a kit with a new certificate, if there is one.
    """

    def fetch() -> Any:
        # gRPC asks this hook for a new certificate before each handshake; None keeps the present one. No other hook is
        # called for connections that fail.
        new = on_connection()
        return None if new is None else _configuration(new)

    return grpc.dynamic_ssl_server_credentials(_configuration(kit), fetch, require_client_authentication=True)


def _configuration(kit: Kit) -> Any:
    return grpc.ssl_server_certificate_configuration([(kit.key, kit.certificate)], root_certificates=kit.authority)


def channel(kit: Kit, member: Member) -> grpc.aio.Channel:
    """A connection to a peer, made on first use, and only if the other end has that peer's certificate."""
    return grpc.aio.secure_channel(member.address, _credentials(kit), options=_options(member))


def blocking_channel(kit: Kit, member: Member) -> grpc.Channel:
    """The same for blocking calls."""
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
