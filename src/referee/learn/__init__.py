"""Policy training: a Trainer made of a rollout source, a reward source, a learner and callbacks."""
