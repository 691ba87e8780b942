"""The parts that share the work of a run: plain classes, called directly or from afar."""
