"""The statistics of a LeRobot dataset, which its policies normalise with: per episode, and merged over all."""

from __future__ import annotations

import numpy as np

Stats = dict[str, np.ndarray]
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SAMPLED_FRAMES = 100


def number_stats(values: np.ndarray) -> Stats:
    """Of N rows, per element."""
    rows = values.reshape(len(values), -1)
    numbers = rows.astype(np.float64)
    stats = {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": numbers.mean(axis=0),
        "std": numbers.std(axis=0),
        "count": np.array([len(rows)]),
    }
    return stats | dict(zip(QUANTILES, np.quantile(numbers, list(QUANTILES.values()), axis=0), strict=True))


def picture_stats(frames: np.ndarray) -> Stats:
    """Of pictures uint8[N,H,W,3], per channel, on a scale of 0 to 1, shaped [3,1,1]; long episodes are sampled."""
    chosen = frames[np.linspace(0, len(frames) - 1, min(len(frames), _SAMPLED_FRAMES)).astype(int)]
    levels = np.arange(256) / 255
    counts = np.stack([np.bincount(chosen[..., c].reshape(-1), minlength=256) for c in range(3)])
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ levels
    stats = {
        "min": levels[(counts > 0).argmax(axis=1)],
        "max": levels[255 - (counts > 0)[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt((share * (levels - mean[:, None]) ** 2).sum(axis=1)),
    }
    below = share.cumsum(axis=1)
    stats |= {name: levels[(below >= q - 1e-12).argmax(axis=1)] for name, q in QUANTILES.items()}
    return {name: value.reshape(3, 1, 1) for name, value in stats.items()} | {"count": np.array([len(chosen)])}


def merge(a: Stats, b: Stats) -> Stats:
    """Of both together; quantiles are averaged, as LeRobot does it."""
    total = a["count"] + b["count"]
    share_a, share_b = a["count"] / total, b["count"] / total
    mean = share_a * a["mean"] + share_b * b["mean"]
    variance = share_a * (a["std"] ** 2 + (a["mean"] - mean) ** 2) + share_b * (b["std"] ** 2 + (b["mean"] - mean) ** 2)
    return {
        "min": np.minimum(a["min"], b["min"]),
        "max": np.maximum(a["max"], b["max"]),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": total,
        **{name: share_a * a[name] + share_b * b[name] for name in QUANTILES},
    }
