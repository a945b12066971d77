"""The files for clusters: they parse, and every command in them has options that exist."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser
from typer.main import get_command

from gossamer.commands.app import app
from gossamer.experiment import load_experiment
from gossamer.runs.folder import EXPERIMENT, FINAL

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "deploy" / "slurm" / "gossamer.sbatch"
MANIFEST = ROOT / "deploy" / "kubernetes" / "gossamer.yaml"
PAGE = ROOT / "docs" / "many-machines.md"
FILES = [pytest.param(path, id=path.name) for path in (SBATCH, MANIFEST, PAGE)]


def commands(path: Path, program: str) -> Iterator[list[str]]:
    """The arguments of each call of a program: in a page from its blocks, elsewhere from lines of shell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^```(?:ba)?sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.splitlines():
        if re.match(rf"\s*(exec )?{program} |\s*srun .* {program} ", line):
            words = shlex.split(line, comments=True)
            yield words[words.index(program) + 1 :]


def check_gossamer(words: list[str]) -> None:
    """Refuse a command or an option that does not exist."""
    group: Any = get_command(app)
    name, *arguments = words
    command = group.commands[name]
    command.make_parser(command.context_class(command)).parse_args(args=[a for a in arguments if a != "$@"])


def documents() -> dict[str, Any]:
    """The manifest's documents by their kind."""
    yaml = pytest.importorskip("yaml")
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


def container() -> tuple[dict[str, Any], dict[str, str]]:
    """The Job's container, and the values of its environment that stand in the manifest."""
    (one,) = documents()["Job"]["spec"]["template"]["spec"]["containers"]
    return one, {entry["name"]: entry["value"] for entry in one["env"] if "value" in entry}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_slurm_script_is_valid_shell() -> None:
    text = SBATCH.read_text(encoding="utf-8")
    inner = re.findall(r"^(?:worker|node)='\n(.*?)'$", text, re.MULTILINE | re.DOTALL)
    assert len(inner) == 2
    for script in (text, *inner):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_slurm_script_leaves_time_for_a_checkpoint() -> None:
    text = SBATCH.read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    assert "requeue" in options
    assert options["open-mode"] == "append"
    signal, seconds = options["signal"].split("@")
    assert signal == "USR1"
    assert int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", text)[1]) < int(seconds)  # type: ignore[index]


@pytest.mark.parametrize("path", FILES)
def test_every_gossamer_command_has_options_that_exist(path: Path) -> None:
    found = list(commands(path, "gossamer"))
    assert found
    for words in found:
        check_gossamer(words)


@pytest.mark.parametrize("path", FILES)
def test_every_torchrun_command_has_options_that_exist(path: Path) -> None:
    found = list(commands(path, "torchrun"))
    assert found
    for words in found:
        options = get_args_parser().parse_args(words)
        if options.max_restarts:  # only where launchers meet anew can workers be restarted
            assert options.rdzv_backend == "c10d"
        if options.module:
            assert options.training_script == "gossamer"
            check_gossamer(options.training_script_args)


@pytest.mark.parametrize("path", [SBATCH, MANIFEST], ids=lambda path: path.name)
def test_a_worker_goes_on_with_a_run_that_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert EXPERIMENT in text
    assert FINAL in text
    assert [words[0] for words in commands(path, "gossamer")] == ["resume", "run"]


def test_the_manifest_describes_one_job_of_pods_that_find_each_other() -> None:
    kinds = documents()
    assert set(kinds) == {"ConfigMap", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Job"}
    job, service = kinds["Job"]["spec"], kinds["Service"]
    pod = job["template"]["spec"]
    _, values = container()
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == int(values["NODES"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= job["template"]["metadata"]["labels"].items()
    assert pod["subdomain"] == service["metadata"]["name"]
    assert values["MEETING"].split(":")[0] == f"{kinds['Job']['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["restartPolicy"] == "OnFailure"
    assert int(values["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert kinds["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_paths_of_the_manifest_are_mounted() -> None:
    one, values = container()
    mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
    for name, mount in (("RUN", "/shared"), ("GOSSAMER_DATA", "/shared"), ("EXPERIMENT", "/experiment")):
        assert Path(values[name]).is_relative_to(mount)
        assert mount in mounts
    volumes = {volume["name"] for volume in documents()["Job"]["spec"]["template"]["spec"]["volumes"]}
    assert set(mounts.values()) == volumes


def test_the_experiment_of_the_manifest_is_one(tmp_path: Path) -> None:
    _, values = container()
    file = tmp_path / "experiment.toml"
    file.write_text(documents()["ConfigMap"]["data"][Path(values["EXPERIMENT"]).name], encoding="utf-8")
    nodes = int(values["NODES"])
    assert load_experiment(file).clients >= nodes


def test_the_commands_of_the_manifest_are_valid_shell() -> None:
    one, values = container()
    assert one["command"] == ["sh", "-c"]
    for script in (*one["args"], values["WORKER"]):
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)
