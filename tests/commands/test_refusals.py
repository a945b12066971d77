"""Bad input: exit code 2, one message that says what, where and what would be right, and nothing half-written."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Refused = Callable[..., str]
Settings = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("method", "dfedsma", ("unknown method 'dfedsma'", "did you mean 'dfedsam'?")),
        ("graph", "rign", ("unknown graph 'rign'", "did you mean 'ring'?")),
        ("model", "mnist2nn", ("unknown model 'mnist2nn'", "did you mean 'mnist-2nn'?")),
        ("dataset", "minst", ("unknown data set 'minst'", "did you mean 'mnist'?")),
        ("partition", "dirichelt", ("unknown partition 'dirichelt'", "did you mean 'dirichlet'?")),
        ("loss", "crossentropy", ("unknown loss 'crossentropy'", "did you mean 'cross-entropy'?")),
        ("model", "zzz", ("unknown model 'zzz'", "softmax", "resnet-18")),
        ("rouns", "3", ("unknown key 'rouns'", "did you mean 'rounds'?")),
        ("self", "3", ("unknown key 'self'", "known: batch_size")),
        ("gosip_steps", "2", ("unknown key 'gosip_steps'", "did you mean 'method.gossip_steps' (of dfedsam-mgs)?")),
        ("rho", "0.1", ("unknown key 'rho'", "'method.rho' (of fedsam, dfedsam, dfedsam-mgs, ...)?")),
        ("neigbours", "3", ("'method.neighbours' (of asyng) or 'graph.neighbours' (of random-symmetric,",)),
        ("evry", "3", ("unknown key 'evry'", "did you mean 'evaluate.every'?")),
        ("evaluate.evry", "3", ("unknown key 'evaluate.evry'", "did you mean 'every'?")),
        ("method", '{name="dfedsam", rh=1}', ("method 'dfedsam' has no parameter 'rh'", "did you mean 'rho'?")),
        ("method.rho", "0.1", ("method 'dfedavg' has no parameter 'rho'",)),
        ("graph", '{name="ring", k=2}', ("graph 'ring' has no parameter 'k'",)),
        ("method", "{rho=1}", ("method", "needs a 'name'", "dfedsam")),
        ("model", "mylab.nets.small", ("unknown model", "package.module:name")),
    ],
)
def test_unknown_names(refused: Refused, settings: Settings, key: str, value: str, says: tuple[str, ...]) -> None:
    refused("run", *settings(), f"--set={key}={value}", says=says)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rounds", "0", ("rounds", "greater than or equal to 1", "got 0")),
        ("rounds", "many", ("rounds", "integer", "got 'many'")),
        ("rounds", "2.5", ("rounds", "integer", "got 2.5")),
        ("rounds", "true", ("rounds", "true")),
        ("evaluate.every", "-1", ("evaluate.every", "got -1")),
        ("evaluate", "5", ("evaluate", "got 5")),
        ("clients", "0", ("clients", "got 0")),
        ("lr", "-1", ("lr", "greater than 0", "got -1")),
        ("lr", "inf", ("lr", "finite", "got inf")),
        ("lr", "nan", ("lr", "got nan")),
        ("lr_decay", "1.5", ("lr_decay", "less than or equal to 1", "got 1.5")),
        ("weight_decay", "-1", ("weight_decay", "got -1")),
        ("clip", "0", ("clip", "greater than 0", "got 0")),
        ("seed", "-1", ("seed", "got -1")),
        ("dtype", "float16", ("dtype", "'float32'", "'float64'", "got 'float16'")),
        ("batch_size", "0", ("batch_size", "got 0")),
        ("local_steps", "-1", ("local_steps", "got -1")),
        ("checkpoint_every", "-1", ("checkpoint_every", "got -1")),
        ("method", '{name="dfedavgm", momentum=1.5}', ("method 'dfedavgm'", "momentum", "less than 1", "got 1.5")),
        ("method", '{name="dfedsam", rho=-1}', ("method 'dfedsam'", "rho", "got -1")),
        ("partition", '{name="dirichlet", alpha=0}', ("partition 'dirichlet'", "alpha", "greater than 0", "got 0")),
        ("dataset", '{name="digits", train_samples=0}', ("data set 'digits'", "train_samples", "got 0")),
        ("dataset", '{name="digits", train_samples=9999}', ("digits", "9,999", "1,437")),
        ("method", "5", ("method", "5 is not a method")),
        ("graph", "5", ("graph", "5")),
        ("model", "5", ("model", "5")),
        ("partition", "5", ("partition", "5")),
        ("dataset", "5", ("data set", "5")),
        ("loss", "5", ("loss", "5")),
    ],
)
def test_values_out_of_range(refused: Refused, settings: Settings, key: str, value: str, says: tuple[str, ...]) -> None:
    refused("run", *settings(), f"--set={key}={value}", says=says)


def test_a_parameter_without_its_table_is_looked_for_in_the_chosen_parts_first(
    refused: Refused, settings: Settings
) -> None:
    chosen = settings(method="dfedsam", graph="random-pull")
    refused("run", *chosen, "--set=rho=0.1", says=("unknown key 'rho': did you mean 'method.rho'?",))
    refused("run", *chosen, "--set=neighbors=3", says=("unknown key 'neighbors': did you mean 'graph.neighbours'?",))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--rounds", ("--set rounds=VALUE sets it",)),
        ("--method.rho", ("--set method.rho=VALUE sets it",)),
        ("--round", ("--set KEY=VALUE", "'rounds'")),
        ("--gosip-steps", ("--set KEY=VALUE", "'method.gossip_steps'")),
        ("--worker", ("--workers",)),
    ],
)
def test_a_key_given_as_an_option(gossamer: Any, option: str, says: tuple[str, ...]) -> None:
    answer = gossamer("run", option, "3")
    assert answer.code == 2
    for words in says:
        assert words in " ".join(answer.err.replace("│", " ").split())
    assert ("Possible options" in answer.err) == (option == "--worker")


def test_every_wrong_value_is_told_at_once(refused: Refused) -> None:
    refused("run", "--set=rounds=0", "--set=lr=-1", says=("rounds", "lr"))


@pytest.mark.parametrize("setting", ["lr", "=5", "rounds"])
def test_a_setting_without_a_value(refused: Refused, setting: str) -> None:
    refused("run", "--set", setting, says=(f"'{setting}' is not a setting", "key=value"))


def test_a_parameter_of_something_that_has_none(refused: Refused) -> None:
    refused("run", "--set=rounds.x=1", says=("rounds",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("rounds = 3\nlr = = 2\n", ("not valid TOML", "line 2")),
        ("rounds = 3\nrouns = 2\n", ("unknown key 'rouns'", "rounds")),
        ("local_epochs = 2\nlocal_steps = 3\n", ("local_epochs and local_steps", "set one")),
        ("seeds = 2\n[sweep]\nlr = [0.1, 0.2]\n", ("[sweep]", "gossamer compare experiment.toml")),
        (b"\xff\xfe\x00", ("not valid TOML", "UTF-8")),
    ],
)
def test_bad_files(refused: Refused, place: Path, content: str | bytes, says: tuple[str, ...]) -> None:
    (place / "experiment.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("run", "experiment.toml", says=("experiment.toml: ", *says))


def test_a_file_that_is_not_there(refused: Refused) -> None:
    refused("run", "nowhere.toml", says=("nowhere.toml", "No such file"))
    refused("compare", "nowhere.toml", says=("nowhere.toml", "No such file"))


def test_a_directory_in_place_of_a_file(refused: Refused, place: Path) -> None:
    (place / "folder").mkdir()
    refused("run", "folder", says=("folder", "Is a directory\n"))
    (place / "folder" / "comparison.toml").write_text("rounds = 1")
    refused("compare", "folder", says=("Is a directory; 'gossamer resume folder' goes on with",))
    refused("resume", "folder/comparison.toml", says=("is not a run folder but a file",))


@pytest.mark.parametrize(
    ("graph", "clients", "says"),
    [
        ("ring", 2, ("graph 'ring' needs at least 3 clients (got 2)", "full")),
        ("double-ring", 4, ("graph 'double-ring' needs at least 5 clients", "ring")),
        ('{name="k-regular", k=4}', 4, ("k-regular", "k = 4", "at most 3")),
    ],
)
def test_a_graph_with_too_few_clients(
    refused: Refused, settings: Settings, graph: str, clients: int, says: tuple[str, ...]
) -> None:
    refused("run", *settings(graph=graph, clients=clients), says=says)


def test_clients_that_do_not_match_an_edge_list(refused: Refused, settings: Settings, place: Path) -> None:
    (place / "edges.txt").write_text("0 1\n1 2\n2 5\n")
    graph = '{name="edge-list", path="edges.txt"}'
    refused("run", *settings(graph=graph), says=("edges.txt", "line 3", "no client 5", "0 to 3"))
    refused("run", *settings(graph=graph, clients=7), says=("edges.txt", "7 clients", "3, 4 and 6"))
    refused("run", *settings(graph='{name="edge-list", path="none.txt"}'), says=("none.txt",))


def test_a_graph_in_two_pieces(refused: Refused, settings: Settings, place: Path) -> None:
    (place / "edges.txt").write_text("0 1\n2 3\n")
    refused("run", *settings(graph='{name="edge-list", path="edges.txt"}'), says=("not connected", "2 and 3"))


def test_more_shards_than_samples(refused: Refused, settings: Settings) -> None:
    partition = '{name="shards", classes_per_client=60}'
    refused("run", *settings(partition=partition), says=("shards", "240", "200 samples"))


@pytest.mark.parametrize(
    ("method", "graph", "says"),
    [
        ("fedavg", "ring", ("'fedavg'", "'ring'", "needs a server", "dfedavg, dfedavgm")),
        ("dfedavg", "server", ("'dfedavg'", "'server'", "Methods that can: fedavg")),
        ("dfedavg", '{name="directed-random", neighbours=2}', ("'dfedavg'", "'directed-random'", "rows")),
    ],
)
def test_a_method_on_the_wrong_graph(
    refused: Refused, settings: Settings, method: str, graph: str, says: tuple[str, ...]
) -> None:
    refused("run", *settings(method=method, graph=graph), says=("cannot run on graph", "Methods that can", *says))


@pytest.mark.parametrize(("device", "says"), [("cuda:99", ()), ("gpu", ("cuda",)), ("meta", ()), ("mps", ())])
def test_a_device_that_is_not_there(refused: Refused, settings: Settings, device: str, says: tuple[str, ...]) -> None:
    message = refused("run", *settings(device=device), says=(f"device: '{device}'", "'cpu' always can", *says))
    assert message.count("\n") == 1


@pytest.mark.parametrize("chunk", ["0", "-3"])
def test_a_chunk_of_nothing(refused: Refused, settings: Settings, chunk: str) -> None:
    says = ("chunk", "at least 1", f"got {chunk}")
    refused("run", *settings(), "--chunk", chunk, says=says)
    refused("compare", *settings(), "--chunk", chunk, "--out", "c", says=says)
    refused("resume", "nowhere", "--chunk", chunk, says=says)


def test_options_that_typer_refuses(gossamer: Callable[..., Any], place: Path) -> None:
    for arguments in (["run", "--chunk", "x"], ["run", "--on-divergence", "panic"], ["rum"], ["show"]):
        answer = gossamer(*arguments)
        assert answer.code == 2
        assert "Traceback" not in answer.err
    assert not list(place.iterdir())


# Sweeps: everything is checked before anything runs.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sweep=method=dfedavg,dfedsma"], ("unknown method 'dfedsma'", "dfedsam")),
        (["--sweep=methd=dfedavg,dfedsam"], ("unknown key 'methd'", "method")),
        (["--sweep=lr=0.1,-1"], ("lr", "got -1")),
        (["--sweep=graph=ring,server"], ("'dfedavg' cannot run on graph 'server'",)),
        (["--sweep=graph=ring,torus"], ("torus",)),
        (["--sweep=lr=0.1,0.1"], ("same variant twice", "0.1")),
        (["--sweep=lr="], ("lr", "list of values")),
        (["--sweep=lr"], ("'lr' is not a setting",)),
        (["--sweep=lr=0.1,0.2", "--seeds", "0"], ("seeds", "at least 1", "got 0")),
        (["--sweep=clients=4,2", "--set=graph=ring"], ("ring", "at least 3 clients")),
    ],
)
def test_bad_sweeps(refused: Refused, settings: Settings, options: list[str], says: tuple[str, ...]) -> None:
    refused("compare", *settings(clients=4), *options, "--out", "c", says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[sweep]\nlr = 0.1\n", ("lr", "list of values")),
        ("sweep = 3\n", ("sweep", "table of lists")),
        ("seeds = 'two'\n[sweep]\nlr = [0.1]\n", ("seeds", "whole number")),
        ("[sweep]\n", ("sweep",)),
        ("rouns = 2\n[sweep]\nlr = [0.1]\n", ("plan.toml", "unknown key 'rouns'")),
    ],
)
def test_bad_plans(refused: Refused, place: Path, content: str, says: tuple[str, ...]) -> None:
    (place / "plan.toml").write_text(content)
    refused("compare", "plan.toml", "--out", "c", says=says)


# Own parts by dotted path.


def test_a_model_with_batch_norm(refused: Refused, settings: Settings, own_module: Callable[[str], str]) -> None:
    name = own_module(
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))\n"
    )
    refused("run", *settings(model=f"{name}:net"), says=("BatchNorm1d at '2'", "nn.GroupNorm"))


def test_dotted_paths_that_lead_nowhere(refused: Refused, settings: Settings, own_module: Callable[[str], str]) -> None:
    name = own_module("x = 1\n")
    broken = own_module("def f(:\n")
    failing = own_module("1 / 0\n")
    for path, says in {
        "no_such_lab.nets:net": ("No module named 'no_such_lab'",),
        f"{name}:nett": ("no attribute 'nett'",),
        f"{name}:": ("cannot be imported",),
        f"{broken}:f": ("SyntaxError", broken),
        f"{failing}:f": ("ZeroDivisionError",),
        f"{name}:x": ("model", "1"),
    }.items():
        refused("run", *settings(model=path), says=("model", *says))
    refused("run", *settings(model=f'{{name="{name}:x", width=3}}'), says=("takes no parameters",))


def test_own_parts_of_the_wrong_kind(refused: Refused, settings: Settings, own_module: Callable[[str], str]) -> None:
    name = own_module(
        "class Half:\n    def step(self): ...\n"
        "def net(depth): ...\n"
        "def nothing(): ...\n"
        "class Wide:\n    sends = {}\n    def __init__(self, width): ...\n    def step(self): ...\n"
    )
    refused("run", *settings(method=f"{name}:Half"), says=("not a method", "lacks", "finish"))
    refused("run", *settings(method=f"{name}:Wide"), says=(f"method '{name}:Wide'", "width"))
    refused("run", *settings(method=f"{name}:nothing"), says=("not a method",))
    refused("run", *settings(model=f"{name}:net"), says=("model", "depth"))
    refused("run", *settings(model=f"{name}:nothing"), says=("nn.Module", "NoneType"))
    refused("run", *settings(dataset=f"{name}:nothing"), says=("data set",))
    refused("run", *settings(graph=f"{name}:nothing"), says=("graph",))


# Data files.


IDX = {"train-images-idx3-ubyte": 9_912_422, "train-labels-idx1-ubyte": 28_881,
       "t10k-images-idx3-ubyte": 1_648_877, "t10k-labels-idx1-ubyte": 4_542}  # fmt: skip


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Four files of MNIST by name and size, with nothing of it inside."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name, size in IDX.items():
        with (folder / f"{name}.gz").open("wb") as file:
            file.truncate(size)  # a hole takes no disk
    return folder


def test_a_truncated_data_file(refused: Refused, mnist: Path) -> None:
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"short"))
    says = ("train-images-idx3-ubyte.gz", "truncated", "9,912,422 bytes", "Delete it")
    refused("run", "--set=dataset=mnist", says=says)
    refused("partition", "--set=dataset=mnist", says=says)
    refused("compare", "--set=dataset=mnist", "--out", "c", says=says)


def test_a_data_file_of_other_content(refused: Refused, mnist: Path) -> None:
    says = ("train-images-idx3-ubyte.gz", "sha256", "440fcabf73cc546f", "Delete it")
    refused("run", "--set=dataset=mnist", says=says)


def test_missing_data_without_a_network(refused: Refused, tmp_path: Path) -> None:
    for option in ([], ["--data-dir", tmp_path / "elsewhere"]):
        where = tmp_path / ("elsewhere" if option else "data") / "mnist"
        says = (str(where), *(f"{name}.gz" for name in IDX), "download failed", "http://yann.lecun.com")
        refused("run", "--set=dataset=mnist", *option, says=says)
    refused("run", "--set=dataset=cifar10", says=(str(tmp_path / "data" / "cifar10"), "cifar-10-binary.tar.gz"))


# Where runs are written.


def test_a_folder_that_cannot_be_made(refused: Refused, settings: Settings, place: Path) -> None:
    (place / "file").write_text("mine")
    refused("run", *settings(), "--out", "file", says=("file", "not a run folder", "--out"))
    refused("run", *settings(), "--out", "file/run", says=("file/run", "cannot be written", "Not a directory"))
    refused("run", *settings(), "--out", "/proc/run", says=("/proc/run", "cannot be written"))
    refused("compare", *settings(), "--out", "file", says=("file", "not a comparison"))
    refused("compare", *settings(), "--out", "file/c", says=("file/c", "cannot be written", "Not a directory"))


def test_a_folder_that_holds_something_else(refused: Refused, settings: Settings, place: Path) -> None:
    (place / "folder").mkdir()
    (place / "folder" / "thesis.tex").write_text("mine")
    refused("run", *settings(), "--out", "folder", says=("folder", "exists and is not a run folder", "--out"))
    refused("compare", *settings(), "--out", "folder", says=("folder", "exists and is not a comparison", "--out"))


def test_a_folder_that_holds_a_run(
    gossamer: Callable[..., Any], refused: Refused, settings: Settings, place: Path
) -> None:
    gossamer("run", *settings(), "--out", "r", "--quiet")
    says = ("r: holds a run already (finished)", "gossamer show r", "--out")
    assert "resume" not in refused("run", *settings(), "--out", "r", says=says)
    (place / "r" / "final.safetensors").unlink()
    refused("run", *settings(), "--out", "r", says=("(unfinished)", "gossamer resume r"))
    refused("run", *settings(), "--out", "new/../r", says=("holds a run already (unfinished)",))


def test_a_folder_that_holds_another_comparison(
    gossamer: Callable[..., Any], refused: Refused, settings: Settings
) -> None:
    gossamer("compare", *settings(rounds=1), "--sweep=lr=0.1,0.2", "--out", "c", "--quiet")
    refused("compare", *settings(rounds=1), "--sweep=lr=0.1,0.3", "--out", "c", says=("c: holds another comparison",))
    refused("compare", *settings(rounds=1), "--sweep=lr=0.1,0.3", "--out", "new/../c", says=("another comparison",))


@pytest.mark.parametrize("command", ["resume", "show"])
def test_what_is_no_run(refused: Refused, place: Path, command: str) -> None:
    (place / "folder").mkdir()
    (place / "file").write_text("")
    refused(command, "folder", says=("folder: is not a run folder", "experiment.toml", "gossamer run"))
    refused(command, "nowhere", says=("nowhere: does not exist",))
    refused(command, "file", says=("file: is not a run folder",))


def test_show_with_nowhere_to_draw(gossamer: Callable[..., Any], settings: Settings, place: Path) -> None:
    gossamer("run", *settings(rounds=1), "--out", "r", "--quiet")
    (place / "file").write_text("mine")
    answer = gossamer("show", "r", "--out", "file")
    assert answer.code == 2
    assert "file: cannot be written" in answer.err


# Looking at graphs and partitions.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rign"], ("unknown graph 'rign'", "ring")),
        (["ring", "--clients", "2"], ("at least 3 clients",)),
        (["ring", "--clients", "0"], ("clients",)),
        (["k-regular", "--set", "k"], ("'k' is not a setting",)),
        (["k-regular", "--set", "q=3"], ("no parameter 'q'", "k")),
        (["ring", "--model", "lenet", "--dataset", "digits"], ("lenet", "16x16")),
        (["ring", "--model", "nett"], ("unknown model 'nett'",)),
        (["ring", "--dataset", "mnits"], ("unknown data set 'mnits'", "mnist")),
    ],
)
def test_bad_graph_commands(refused: Refused, arguments: list[str], says: tuple[str, ...]) -> None:
    refused("graph", *arguments, says=says)


@pytest.mark.parametrize("path", ["picture.bmp", "file/picture.png"])
def test_pictures_that_cannot_be_drawn(
    gossamer: Callable[..., Any], settings: Settings, place: Path, path: str
) -> None:
    (place / "file").write_text("mine")
    for command in (["graph", "ring"], ["partition", *settings()]):
        answer = gossamer(*command, "--out", path)
        assert answer.code == 2
        assert f"{path.partition('/')[0]}" in answer.err
        assert answer.err.count("error:") == 1
