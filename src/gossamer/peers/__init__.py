"""Peers: the same methods between machines, over a network that is not trusted."""

import os

# Set before grpc is loaded by any module: the cipher suites for TLS 1.2, the lowest version that gRPC accepts.
os.environ["GRPC_SSL_CIPHER_SUITES"] = ":".join((
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
))  # fmt: skip
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # invalid connections are counted, not printed
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # no child process uses gRPC
