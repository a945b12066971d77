"""The folder of a run or a comparison that was started without `--out`."""

from datetime import datetime
from pathlib import Path

from gossamer.experiment import Experiment
from gossamer.runs.folder import EXPERIMENT, FINAL
from gossamer.workers import restarted

#: The folder of all such runs, in the current directory.
RUNS = Path("runs")


def fresh_folder(name: str) -> Path:
    """A folder that does not exist yet, named by the time and by what is run."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = RUNS / f"{stamp}-{name}"
    number = 1
    while path.exists():
        number += 1
        path = RUNS / f"{stamp}-{name}-{number}"
    return path


def unfinished_run(experiment: Experiment) -> Path | None:
    """After a launcher's restart: the newest unfinished run of the same experiment, to be continued."""
    if not restarted():
        return None
    text = experiment.to_toml()
    same = [
        file.parent
        for file in RUNS.glob(f"*/{EXPERIMENT}")
        if not (file.parent / FINAL).exists() and file.read_text(encoding="utf-8") == text
    ]
    return max(same, default=None, key=lambda folder: folder.name)
