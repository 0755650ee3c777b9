"""The choice of an op's formulation: candidates, measurements, the target device."""
