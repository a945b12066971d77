"""Run before a peer: moves its process into a network `namespace`."""

import ctypes
import os


def move(namespace: str) -> None:
    library, network = ctypes.CDLL(None, use_errno=True), 0x40000000
    with open(f"/run/netns/{namespace}") as file:
        if library.setns(file.fileno(), network):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "<run_path>":
    move(globals()["namespace"])
