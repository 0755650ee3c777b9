"""Compiled graphs: execution, measurement, reports."""
