"""Which formulation of an op runs: candidates, measurements, the device they are for."""
