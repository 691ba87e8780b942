"""A Franka, or its twin, as an environment: what may be commanded, when to hold, and what is a success."""
