"""Convergence theory of an experiment: the constants of four papers' theorems, measured, and their bounds."""

from gossamer.theory.bounds import DFEDADMM, DFEDSAM, DFEDSGPSM, LOCAL_G_ECL, THEOREMS, Constants, Term, Theorem, phi
from gossamer.theory.measures import Measured, measure
from gossamer.theory.report import Bound, Theory, Values, analyse, evaluate

__all__ = [
    "DFEDADMM",
    "DFEDSAM",
    "DFEDSGPSM",
    "LOCAL_G_ECL",
    "THEOREMS",
    "Bound",
    "Constants",
    "Measured",
    "Term",
    "Theorem",
    "Theory",
    "Values",
    "analyse",
    "evaluate",
    "measure",
    "phi",
]
