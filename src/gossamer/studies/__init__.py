"""Studies: variants of one experiment, every one of them run with the same seeds, and what their runs say."""

from gossamer.studies.execution import compare
from gossamer.studies.landscape import Landscape, LandscapeSettings, measure_landscapes
from gossamer.studies.reading import read_comparison
from gossamer.studies.results import Comparison, Difference, Estimate, StudyRun, TargetResult, VariantResult
from gossamer.studies.sharpness import SharpnessSettings, measure_sharpness
from gossamer.studies.study import COMPARISON, DEFAULT_SWEEP, Study, load_study
from gossamer.studies.targets import Cost, Reached, Target, reach
from gossamer.studies.variants import Variant, part_label, slug, value_label

__all__ = [
    "COMPARISON",
    "DEFAULT_SWEEP",
    "Comparison",
    "Cost",
    "Difference",
    "Estimate",
    "Landscape",
    "LandscapeSettings",
    "Reached",
    "SharpnessSettings",
    "Study",
    "StudyRun",
    "Target",
    "TargetResult",
    "Variant",
    "VariantResult",
    "compare",
    "load_study",
    "measure_landscapes",
    "measure_sharpness",
    "part_label",
    "reach",
    "read_comparison",
    "slug",
    "value_label",
]
