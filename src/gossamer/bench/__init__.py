"""Benchmarks: how fast an experiment runs on this machine, and what limits it."""

from gossamer.bench.benchmark import benchmark
from gossamer.bench.report import BenchReport

__all__ = ["BenchReport", "benchmark"]
