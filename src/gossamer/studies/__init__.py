"""Comparing variants of an experiment."""
