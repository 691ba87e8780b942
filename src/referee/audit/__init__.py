"""Can it be trusted? Calibration, threshold and gate, measured numbers, and the report card that shows them."""
