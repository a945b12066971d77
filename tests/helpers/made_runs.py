"""Run folders with made-up numbers: whole, diverged, half-written, large."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w


def made_run(
    path: Path,
    *,
    method: Any = "dfedavg",
    graph: Any = "ring",
    clients: int = 8,
    rounds: int = 12,
    done: int | None = None,
    seed: int = 0,
    level: float = 0.9,
    lr: float = 0.1,
    kept: int = 4,
    final: bool = True,
    **metrics: float,
) -> Path:
    """Write a run folder; `level` is the accuracy that it approaches, `metrics` are more values of every round."""
    (path / "checkpoints").mkdir(parents=True)
    experiment = {"method": method, "graph": graph, "clients": clients, "rounds": rounds, "dataset": "digits",
                  "model": "mnist-2nn", "partition": "iid", "lr": lr, "seed": seed}  # fmt: skip
    (path / "experiment.toml").write_text(tomli_w.dumps(experiment))
    (path / "environment.json").write_text(json.dumps({"format": 1, "python": "3.11", "packages": {"torch": "2"}}))
    draw = np.random.Generator(np.random.Philox([seed, clients]))
    labels = draw.integers(0, 40, (clients, 10)).tolist()
    (path / "partition.json").write_text(json.dumps({"clients": clients, "labels": labels}))
    lines: dict[str, list[str]] = {"metrics": [], "timings": [], "clients": []}
    for number in range(1, (rounds if done is None else done) + 1):
        gone = 1 - math.exp(-3 * number / rounds)
        accuracy = level * gone + 0.004 * seed
        lines["metrics"].append(json.dumps({
            "round": number, "lr": 0.1, "local_loss": 2 * math.exp(-3 * number / rounds), "client_bytes_round": 100.0,
            "bytes_round": 800, "bytes_total": 800 * number, "messages_total": 16 * number,
            "gradients_total": 40 * number, "consensus": 0.1 / number, "test_loss": 1 - gone / 2,
            "test_accuracy": accuracy, "client_accuracy_worst": accuracy * 0.8, "generalisation_gap": 0.02, **metrics,
        }))  # fmt: skip
        lines["timings"].append(json.dumps({"round": number, "seconds_local": 0.5, "seconds_mixing": 0.1}))
        if number % max(1, rounds // kept) == 0:
            own = np.round(accuracy * draw.uniform(0.8, 1, clients), 4).tolist()
            lines["clients"].append(json.dumps({"round": number, "client_accuracy": own, "client_loss": own}))
    for name, each in lines.items():
        (path / f"{name}.jsonl").write_text("".join(line + "\n" for line in each))
    if final:
        (path / "final.safetensors").write_bytes(b"")
    return path
