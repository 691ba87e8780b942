"""Guards that cost no label: what an artifact itself says about how it may be used."""

from __future__ import annotations

from referee.models.artifact import Calibration

PAID, DETECTED = 0.10, 0.8
"""Of failing episodes, so many may be paid at most, with 95 % confidence; of successes, so many must be detected."""


def weakness(calibration: Calibration) -> str | None:
    """Why a model should not judge every state of an episode; None where its validation gives no reason.

    A mistake in any of its states pays an episode that fails: with few failing episodes in validation, nobody knows.
    """
    found = calibration.measured
    if not found or calibration.target_episode_fpr is None:
        return "nobody has calibrated it on validation episodes"
    upper, failing = found.get("episode_fpr_upper", 1.0), found.get("failing_episodes", 0)
    if upper > PAID:
        return f"of {failing} failing validation episodes, up to {upper:.0%} may be paid (95 % confidence)"
    detected, successes = found.get("detected_episodes", 0), found.get("success_episodes", 0)
    if detected < DETECTED * successes:
        return f"only {detected} of {successes} successful validation episodes are detected"
    return None
