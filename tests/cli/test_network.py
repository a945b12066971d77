"""`gossamer network`: kits are made, checked and taken back; every mistake is told in one message."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.peers.kit import open_kit

Command = Callable[..., object]
Refused = Callable[..., str]

NETWORK = """
[experiment]
rounds = 2
[peers.alice]
port = 1
[peers.bob]
port = 2
[peers.carol]
port = 3
"""


@pytest.fixture(autouse=True)
def network_file(place: Path) -> Path:
    (place / "network.toml").write_text(NETWORK)
    return place / "network.toml"


def test_create_check_revoke(gossamer: Command, place: Path) -> None:
    made = gossamer("network", "create", "network.toml", "--out", "my kits", "--days", "10")
    assert made.code == 0, made.text
    assert "3 kits for experiment" in made.out
    assert "gossamer peer 'my kits/alice'" in made.out
    assert "gossamer network check 'my kits'" in made.out
    kit = open_kit(place / "my kits" / "carol")
    assert kit.roster.digest in made.out

    checked = gossamer("network", "check", "my kits")
    assert checked.code == 1  # nobody has been started yet
    assert checked.out.count("refused: nobody listens there") == 3
    assert checked.out.count("9 days left") == 3
    assert gossamer("network", "check", "my kits/alice").out.count("not here") == 2

    revoked = gossamer("network", "revoke", "my kits", "bob")
    assert revoked.code == 0
    assert "the list is in 3 kits" in revoked.out
    checked = gossamer("network", "check", "my kits")
    assert checked.code == 2
    assert "certificate of 'bob' revoked since" in checked.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "nowhere.toml"), ("nowhere.toml: cannot be read: No such file",)),
        (("create", "network.toml", "--days", "0"), ("days: a certificate is valid for 1 to 3650 days (got 0)",)),
        (("create", "network.toml", "--out", "."), ("is the current folder",)),
        (("create", "network.toml", "--out", "network.toml"), ("exists already",)),
        (("check", "nowhere"), ("nowhere: does not exist; name a kit",)),
        (("check", "network.toml"), ("network.toml: is a file; name a kit",)),
        (("check", "."), ("there are no kits in it",)),
        (("revoke", ".", "alice"), ("has no authority/key.pem",)),
    ],
)
def test_mistakes(refused: Refused, arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused("network", *arguments, says=says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rounds = 2", "method = 'fedavg'", ("network.toml: method 'fedavg' needs a server", "'dfedavg'")),
        ("rounds = 2", "model = 'lenet'", ("lenet", "8")),
        ("rounds = 2", "rouns = 2", ("network.toml: experiment: unknown key 'rouns'", "'rounds'")),
        ("port = 2", "port = 1", ("peers.bob", "127.0.0.1:1 is taken by 'alice'")),
    ],
)
def test_networks_that_cannot_work(
    refused: Refused, network_file: Path, old: str, new: str, says: tuple[str, ...]
) -> None:
    network_file.write_text(NETWORK.replace(old, new))
    refused("network", "create", "network.toml", says=says)


def test_other_commands_do_not_wait_for_what_peers_need() -> None:
    code = (
        "import sys, gossamer.cli; print([m for m in ('grpc', 'cryptography', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
