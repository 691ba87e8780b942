"""Policies and how they learn: PPO and behaviour cloning."""
