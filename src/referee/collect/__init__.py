"""Recording with a person at an arm: a session, labelling by keys, teleoperation."""
