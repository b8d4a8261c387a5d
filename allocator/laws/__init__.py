"""Scaling laws: pure functions of parameter pytrees."""
