"""Experiments: the schema, compatibility checks, and preparation for a run."""

from gossamer.experiment.preparation import PreparedExperiment, prepare
from gossamer.experiment.schema import (
    CATALOGS,
    STUDY_KEYS,
    Checked,
    Evaluate,
    Experiment,
    StopAt,
    experiment_from,
    is_spec,
    load_experiment,
    meant_key,
    parse_setting,
    parse_value,
    plain,
    read_toml,
)

__all__ = [
    "CATALOGS",
    "STUDY_KEYS",
    "Checked",
    "Evaluate",
    "Experiment",
    "PreparedExperiment",
    "StopAt",
    "experiment_from",
    "is_spec",
    "load_experiment",
    "meant_key",
    "parse_setting",
    "parse_value",
    "plain",
    "prepare",
    "read_toml",
]
