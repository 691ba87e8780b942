"""What a model's own validation says against it: no better than chance, or nothing to tell by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

AUDIT = "audit it before you use it (referee audit MODEL EPISODES), and record or label more"


def doubt(measured: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """One line about a model that validation does not show to be better than chance; empty where it does.

    Such is an AUROC whose 95 % interval (an episode counts as one case) holds 0.5 or lies below it, one that does not
    exist because all validation frames are of one kind, and a training without validation. Of weights that tell nothing
    of their training, nothing is said.

    measured: of the calibration. provenance: of the artifact.
    """
    if "auroc" in measured:
        value, low, high = (_number(measured.get(name)) for name in ("auroc", "auroc_low", "auroc_high"))
    elif "val" in provenance:
        val = provenance["val"]
        if val is None:
            return f"it was trained without validation, so nothing says how good it is: {AUDIT}"
        value = low = high = _number(val.get("auroc"))
    else:
        return ""
    if math.isnan(value):
        return f"all of its validation frames are of one kind, so nothing says how good it is: {AUDIT}"
    if low > 0.5:
        return ""
    shown = f"{value:.3f}" if low == high else f"{value:.3f} [{low:.3f}, {high:.3f}]"
    word = "is worse than chance" if value < 0.5 else "cannot be told from chance"
    return f"it {word} on its validation (AUROC {shown}): {AUDIT}"


def _number(value: Any) -> float:
    """The value, or NaN where it is none: JSON has null for that."""
    return float(value) if isinstance(value, int | float) else math.nan
