"""Convergence theory of an experiment: the constants of four papers' theorems, measured, and their bounds."""

from gossamer.theory.bounds import DFEDADMM, DFEDSAM, DFEDSGPSM, LOCAL_G_ECL, THEOREMS, Constants, Term, Theorem, phi
from gossamer.theory.measures import Measured, measure
from gossamer.theory.rates import RATES, Rate
from gossamer.theory.report import Bound, RunMeasures, Theory, Values, analyse, evaluate

__all__ = [
    "DFEDADMM",
    "DFEDSAM",
    "DFEDSGPSM",
    "LOCAL_G_ECL",
    "RATES",
    "THEOREMS",
    "Bound",
    "Constants",
    "Measured",
    "Rate",
    "RunMeasures",
    "Term",
    "Theorem",
    "Theory",
    "Values",
    "analyse",
    "evaluate",
    "measure",
    "phi",
]
