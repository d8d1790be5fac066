"""Reference implementation of the diagnostics in numpy, one row at a time, with loops."""

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]


def dispersion(a: Row) -> dict[str, float]:
    """Dispersion of one row; `a` contains the weights of its visible keys."""
    p = np.abs(a) / np.abs(a).sum()
    entropy = -sum(float(x) * np.log(x) for x in p if x > 0)
    return {
        "entropy": entropy,
        "entropy_share": entropy / np.log(len(a)),
        "effective_keys": np.exp(entropy),
        "effective_share": np.exp(entropy) / len(a),
        "participation": 1 / sum(float(x) ** 2 for x in p),
        "largest_weight": max(p),
        "times_uniform": max(p) * len(a),
    }


def geometry(a: Row, v: Row, selected: list[int]) -> dict[str, float]:
    """Distance, bound, expectations and separability of one set of keys, from their definitions."""
    n, count = len(a), len(selected)
    others = [i for i in range(n) if i not in selected]
    y = a[:, None] * v
    s = y[selected].sum(0)
    D = [float(np.linalg.norm(y[i] - s)) for i in range(n)]
    selected_mass = float(a[selected].sum())
    largest_difference = max(float(np.linalg.norm(v[i] - v[j])) for i in others for j in selected)
    longest = max(float(np.linalg.norm(v[j])) for j in selected)
    total = y.sum(0)
    recall = float(np.mean([D[i] < min(D[j] for j in others) for i in selected]))
    precision = count / (count + sum(D[j] <= max(D[i] for i in selected) for j in others))
    cos = [1 - float(y[i] @ s) / (np.linalg.norm(y[i]) * np.linalg.norm(s) + 1e-12) for i in range(n)]
    return {
        "distance": sum(D[j] for j in others),
        "distance_bound": (a.sum() - selected_mass) * largest_difference
        + longest * (selected_mass * (n - count) - (a.sum() - selected_mass)),
        "distance_share": sum(D[j] for j in others) / ((n - count) * float(np.linalg.norm(total))),
        "distance_expected_subset": (n - count)
        / n
        * sum(float(np.linalg.norm(count / (n - 1) * (total - y[i]) - y[i])) for i in range(n)),
        "distance_expected_output": (n - count)
        / n
        * sum(float(np.linalg.norm((total - y[i]) - y[i])) for i in range(n)),
        "recall": recall,
        "precision": precision,
        "f": 2 * precision * recall / (precision + recall) if precision + recall else np.nan,
        "cosine_recall": float(np.mean([cos[i] < min(cos[j] for j in others) for i in selected])),
    } | theorem_2(a, v, selected, min(D[j] for j in others))


def theorem_2(a: Row, v: Row, selected: list[int], r: float) -> dict[str, float]:
    longest = max(float(np.linalg.norm(v[j])) for j in selected)
    smallest_difference = min(
        (float(np.linalg.norm(v[j] - v[k])) for j in selected for k in selected if j != k), default=0.0
    )
    xi = []
    for i in selected:
        others = [j for j in selected if j != i]
        squared = longest**2 * sum(float(a[j]) ** 2 for j in others)
        squared += (longest**2 - smallest_difference**2 / 2) * sum(
            float(a[j] * a[k]) for j in others for k in others if j != k
        )
        xi.append(max(squared, 0.0) ** 0.5)
    upper = [1.0 if x < r else np.exp(-((x - r) ** 2) / (2 * longest**2)) for x in xi]
    return {"recall_lower": max(0.0, 1 - sum(xi) / (r * len(xi))), "recall_upper": float(np.mean(upper))}


def softmax(x: Row) -> Row:
    e = np.exp(x - x.max())
    weights: Row = e / e.sum()
    return weights


def jacobian(a: Row) -> float:
    return float(np.linalg.eigvalsh(np.diag(a) - np.outer(a, a)).max())


def entropy_floor(x: Row) -> float:
    n, sigma = len(x), float(np.linalg.norm(x - x.mean()))
    beta = np.exp(-sigma * np.sqrt(n / (n - 1)))
    floor = np.log(1 + (n - 1) * beta) + sigma * np.sqrt(n * (n - 1)) * beta / (1 + (n - 1) * beta)
    return float(floor)
