"""The network file: what it says, what is refused, and that everyone who has it means the same network."""

from pathlib import Path

import pytest

from gossamer.errors import GossamerError
from gossamer.experiment import Experiment
from gossamer.methods import METHODS
from gossamer.peers.identity.roster import Exchange, Member, Roster, RosterError, load_kit_roster, load_roster

PEERS = """
[peers.alice]
port = 7001
[peers.bob]
port = 7002
data = "bob.npz"
holdout = 0.2
[peers.carol]
host = "::1"
port = 7003
"""
EXPERIMENT = '[experiment]\nmethod = "dfedsam"\nrounds = 2\n'


def load(folder: Path, text: str) -> Roster:
    path = folder / "network.toml"
    path.write_text(text)
    return load_roster(path)


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(name=f"peer-{i}", port=7000 + i) for i in range(count))


def test_what_a_network_file_says(tmp_path: Path) -> None:
    roster = load(tmp_path, EXPERIMENT + '[exchange]\nlate = "reweigh"\nsync = true\n' + PEERS)
    assert roster.names == ("alice", "bob", "carol")
    assert (roster.number("bob"), roster.member("bob").data, roster.member("bob").holdout) == (1, "bob.npz", 0.2)
    assert [member.address for member in roster.members] == ["127.0.0.1:7001", "127.0.0.1:7002", "[::1]:7003"]
    assert roster.experiment.clients == 3
    assert (roster.exchange.late, roster.exchange.patience, roster.exchange.sync) == ("reweigh", 60.0, True)
    with pytest.raises(RosterError, match="no peer 'bo' in the network: did you mean 'bob'"):
        roster.number("bo")


def test_the_experiment_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "winner.toml").write_text(Experiment(method="dfedsam", rounds=2, clients=3).to_toml())
    apart = load(tmp_path, 'experiment = "below/winner.toml"\n' + PEERS)
    assert apart.digest == load(tmp_path, EXPERIMENT + PEERS).digest


def test_the_digest_is_of_what_all_share(tmp_path: Path) -> None:
    plain = load(tmp_path, EXPERIMENT + PEERS).digest
    for private in (("7001", "8001"), ("::1", "10.0.0.3"), ("bob.npz", "elsewhere"), ("0.2", "0.3")):
        assert load(tmp_path, EXPERIMENT + PEERS.replace(*private)).digest == plain
    for shared in (
        ("alice", "anna"),
        ("rounds = 2", "rounds = 3"),
        ("[peers.alice]", "[exchange]\npatience=5\n[peers.alice]"),
    ):
        assert load(tmp_path, (EXPERIMENT + PEERS).replace(*shared)).digest != plain
    turned = "[peers.bob]\nport = 1\n[peers.alice]\nport = 2\n[peers.carol]\nport = 3\n"
    assert load(tmp_path, EXPERIMENT + turned).digest != plain


@pytest.mark.parametrize("method", [name for name in METHODS if "server" not in METHODS.build(name).sends.values()])
def test_every_method_without_a_server_comes_back_from_a_kit(tmp_path: Path, method: str) -> None:
    roster = Roster(Experiment(method=method, clients=6, lr=0.01), members(6))
    (tmp_path / "network.toml").write_text(roster.to_toml("peer-3"))
    again, name = load_kit_roster(tmp_path / "network.toml")
    assert name == "peer-3"
    assert again.digest == roster.digest
    assert again.experiment.digest == roster.experiment.digest


def test_a_kit_says_nothing_of_where_others_have_their_data(tmp_path: Path) -> None:
    roster = load(tmp_path, EXPERIMENT + PEERS)
    assert "bob.npz" in roster.to_toml("bob")
    assert "bob.npz" not in roster.to_toml("alice")
    assert "0.2" not in roster.to_toml("alice")
    (tmp_path / "network.toml").write_text(roster.to_toml())
    again = load_roster(tmp_path / "network.toml")
    assert (again.members, again.exchange, again.digest) == (roster.members, roster.exchange, roster.digest)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least 2"),
        (EXPERIMENT, "at least 2"),
        (EXPERIMENT + "[peers.alice]\nport = 1\n", r"at least 2.*got 1"),
        (PEERS, r"experiment: should be a table"),
        ("experiment = 5\n" + PEERS, r"experiment: should be a table.*got 5"),
        ('experiment = "none.toml"\n' + PEERS, r"none\.toml: cannot be read: No such file"),
        (EXPERIMENT + "clients = 16\n" + PEERS, "clients = 16, but there are 3 peers"),
        (EXPERIMENT + "clients = true\n" + PEERS, "clients = True, but there are 3 peers"),
        (EXPERIMENT + "rouns = 3\n" + PEERS, "experiment: unknown key 'rouns': did you mean 'rounds'"),
        (EXPERIMENT + "[experiment.sweep]\nlr = [1, 2]\n" + PEERS, "comparison"),
        (EXPERIMENT + "[experiments]\n" + PEERS, "unknown key 'experiments': did you mean 'experiment'"),
        (EXPERIMENT + "[experiment.stop_at]\nmetric = 'local_loss'\nvalue = 1\n" + PEERS, "stop_at"),
        (EXPERIMENT + "[experiment.evaluate]\nstart = true\n" + PEERS, r"evaluate\.start"),
        (EXPERIMENT + "[exchange]\nlat = 'wait'\n" + PEERS, "unknown key 'exchange.lat': did you mean 'late'"),
        (EXPERIMENT + "[exchange]\nlate = 'never'\n" + PEERS, "exchange: late: .*'wait' or 'reweigh'"),
        (EXPERIMENT + "[exchange]\npatience = 0\n" + PEERS, "exchange: patience: .*greater than 0"),
        (EXPERIMENT + "[exchange]\npatience = true\n" + PEERS, "exchange: patience: .*true"),
        (EXPERIMENT + "[exchange]\nlate = true\n" + PEERS, "exchange: late: .*true"),
        (EXPERIMENT + "[exchange]\nsync = 1\n" + PEERS, "exchange: sync: "),
        ("exchange = 3\n" + EXPERIMENT + PEERS, "exchange: should be a table"),
        ("peers = 3\n" + EXPERIMENT, "each is a table of its own"),
        ("peers = ['alice', 'bob']\n" + EXPERIMENT, "each is a table of its own"),
        (EXPERIMENT + "[peers]\nalice = 7001\n", "each is a table of its own"),
        (EXPERIMENT + PEERS.replace("port = 7002", "prt = 7002"), "unknown key 'peers.bob.prt': did you mean 'port'"),
        (EXPERIMENT + PEERS.replace("port = 7002\n", ""), "peers.bob: port: Field required"),
        (EXPERIMENT + PEERS.replace("7002", "0"), "peers.bob: port: .*greater than or equal to 1"),
        (EXPERIMENT + PEERS.replace("7002", "65536"), "peers.bob: port: .*less than or equal to 65535"),
        (EXPERIMENT + PEERS.replace("7002", "true"), "peers.bob: port: .*true"),
        (EXPERIMENT + PEERS.replace("7002", "7001"), "127.0.0.1:7001 is taken by 'alice'"),
        (
            EXPERIMENT + PEERS.replace("[peers.bob]\nport = 7002", "[peers.bob]\nhost='localhost'\nport = 7001"),
            "localhost:7001 is taken by 'alice'",
        ),
        (EXPERIMENT + PEERS.replace("0.2", "1"), "peers.bob: holdout: .*less than 1"),
        (EXPERIMENT + PEERS.replace('"bob.npz"', '""'), "peers.bob: data: "),
        (EXPERIMENT + PEERS.replace("peers.bob", 'peers."../bob"'), r"peers.\.\./bob: name: should be of a-z"),
        (EXPERIMENT + PEERS.replace("peers.bob", 'peers.""'), "name: should be of a-z"),
        (EXPERIMENT + PEERS.replace("peers.bob", "peers.Bob"), "peers.Bob: name: should be of a-z"),
        (EXPERIMENT + PEERS.replace("peers.bob", "peers.-bob"), "name: should be of a-z"),
        (EXPERIMENT + PEERS.replace("peers.bob", 'peers."bob\\n"'), "name: should be of a-z"),
        (EXPERIMENT + PEERS.replace("peers.bob", "peers." + "b" * 64), "has 64 characters, at most 63"),
        (EXPERIMENT + PEERS.replace("peers.bob", "peers.authority"), "choose another name"),
        (EXPERIMENT + PEERS.replace("peers.bob", "peers.alice"), "two peers are called 'alice'"),
        (EXPERIMENT + PEERS.replace("::1", "0.0.0.0"), "peers.carol: host: .*other peers reach"),
        (EXPERIMENT + PEERS.replace("::1", "::"), "peers.carol: host: .*other peers reach"),
        (EXPERIMENT + PEERS.replace("::1", "10.0.0"), "peers.carol: host: should be a name"),
        (EXPERIMENT + PEERS.replace("::1", "http://a"), "peers.carol: host: should be a name"),
        (EXPERIMENT + PEERS.replace("::1", "a:7001"), "peers.carol: host: should be a name"),
        (EXPERIMENT + PEERS.replace("::1", "alice.peers.gossamer"), "peers.carol: host: should be a name"),
        (EXPERIMENT + PEERS.replace("::1", ""), "peers.carol: host: should be a name"),
        ("peer = 'alice'\n" + EXPERIMENT + PEERS, "is the network file of the kit of 'alice'"),
        (EXPERIMENT.replace("dfedsam", "fedavg") + PEERS, "'fedavg' needs a server.*none: take 'dfedavg'"),
        (EXPERIMENT.replace("dfedsam", "fedpd") + PEERS, "'fedpd' needs a server"),
        (EXPERIMENT + "graph = 'server'\n" + PEERS, "graph 'server' has a server"),
        (EXPERIMENT.replace("dfedsam", "local-g-ecl") + "graph = 'server'\n" + PEERS, "graph 'server' has a server"),
        (EXPERIMENT + "graph = {name='directed-random', neighbours=1}\n" + PEERS, "cannot run on graph"),
        (EXPERIMENT + "graph = {name='k-regular', k=4}\n" + PEERS, "k-regular"),
        (EXPERIMENT.replace("dfedsam", "python:Mine") + PEERS, "python:Mine"),
        ("[experiment", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(GossamerError, match=says) as error:
        load(tmp_path, text)
    assert str(tmp_path / "network.toml") in str(error.value)
    assert error.value.exit_code == 2


def test_a_file_that_is_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "compare.toml").write_text("rounds = 2\n[sweep]\nmethod = ['dfedavg', 'dfedsam']\n")
    with pytest.raises(RosterError, match=r"compare\.toml: has a \[sweep\]"):
        load(tmp_path, 'experiment = "compare.toml"\n' + PEERS)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(GossamerError, match="cannot be read: Is a directory"):
        load_roster(tmp_path)
    (tmp_path / "network.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(GossamerError, match="not UTF-8"):
        load_roster(tmp_path / "network.toml")


@pytest.mark.parametrize("peer", ["", "peer = 3\n", "peer = 'dave'\n"])
def test_a_kit_that_does_not_say_whose_it_is(tmp_path: Path, peer: str) -> None:
    (tmp_path / "network.toml").write_text(peer + EXPERIMENT + PEERS)
    with pytest.raises(RosterError, match=r"peer = |no 'dave' among the peers"):
        load_kit_roster(tmp_path / "network.toml")


def test_in_python_the_same_is_refused() -> None:
    with pytest.raises(RosterError, match="two of them are called 'a'"):
        Roster(Experiment(clients=3), tuple(Member(name="a", port=port) for port in (1, 2, 3)))
    with pytest.raises(RosterError, match="clients = 16, but there are 3 peers"):
        Roster(Experiment(), members(3))
    with pytest.raises(RosterError, match="loss: function is an object that only this Python program has"):
        Roster(Experiment(clients=3, loss=lambda outputs, targets: outputs), members(3), Exchange())
