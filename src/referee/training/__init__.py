"""From labelled frames to a reward model: the fit loop, its data, its caches and its processes."""
