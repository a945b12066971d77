"""Real peers: the same methods between machines that do not trust the network."""

import os

# Before grpc is loaded, by whichever module: what may be used below TLS 1.3. (It goes no lower than TLS 1.2.)
os.environ["GRPC_SSL_CIPHER_SUITES"] = ":".join((
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
))  # fmt: skip
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a stranger's bytes on the port are counted, not printed
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # no child of this process speaks to peers
