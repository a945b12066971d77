"""Studies: one experiment with one or more keys swept, every variant run with the same seeds."""

from gossamer.studies.comparison import Comparison, StudyRun, compare
from gossamer.studies.study import COMPARISON, DEFAULT_SWEEP, Study, load_study
from gossamer.studies.variants import Sweep, Variant, part_label, slug, value_label, variants

__all__ = [
    "COMPARISON",
    "DEFAULT_SWEEP",
    "Comparison",
    "Study",
    "StudyRun",
    "Sweep",
    "Variant",
    "compare",
    "load_study",
    "part_label",
    "slug",
    "value_label",
    "variants",
]
