"""Policies and how they learn: PPO, SAC and RLPD, behaviour cloning."""
