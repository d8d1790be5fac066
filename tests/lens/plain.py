"""The diagnostics once more, in numpy, one row at a time and with loops: what the streamed ones are compared with."""

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]


def spread_out(a: Row) -> dict[str, float]:
    """`a` holds the weights of the visible keys."""
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


def geometry(a: Row, v: Row, chosen: list[int]) -> dict[str, float]:
    """Distance, bound, expectations and separability of one set of keys, from their definitions."""
    n, count = len(a), len(chosen)
    others = [i for i in range(n) if i not in chosen]
    y = a[:, None] * v
    s = y[chosen].sum(0)
    D = [float(np.linalg.norm(y[i] - s)) for i in range(n)]
    kept = float(a[chosen].sum())
    apart = max(float(np.linalg.norm(v[i] - v[j])) for i in others for j in chosen)
    longest = max(float(np.linalg.norm(v[j])) for j in chosen)
    total = y.sum(0)
    recall = float(np.mean([D[i] < min(D[j] for j in others) for i in chosen]))
    precision = count / (count + sum(D[j] <= max(D[i] for i in chosen) for j in others))
    cos = [1 - float(y[i] @ s) / (np.linalg.norm(y[i]) * np.linalg.norm(s) + 1e-12) for i in range(n)]
    return {
        "distance": sum(D[j] for j in others),
        "distance_bound": (a.sum() - kept) * apart + longest * (kept * (n - count) - (a.sum() - kept)),
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
        "cosine_recall": float(np.mean([cos[i] < min(cos[j] for j in others) for i in chosen])),
    } | theorem_2(a, v, chosen, min(D[j] for j in others))


def theorem_2(a: Row, v: Row, chosen: list[int], r: float) -> dict[str, float]:
    longest = max(float(np.linalg.norm(v[j])) for j in chosen)
    near = min((float(np.linalg.norm(v[j] - v[k])) for j in chosen for k in chosen if j != k), default=0.0)
    xi = []
    for i in chosen:
        rest = [j for j in chosen if j != i]
        squared = longest**2 * sum(float(a[j]) ** 2 for j in rest)
        squared += (longest**2 - near**2 / 2) * sum(float(a[j] * a[k]) for j in rest for k in rest if j != k)
        xi.append(max(squared, 0.0) ** 0.5)
    upper = [1.0 if x < r else np.exp(-((x - r) ** 2) / (2 * longest**2)) for x in xi]
    return {"recall_lower": max(0.0, 1 - sum(xi) / (r * len(xi))), "recall_upper": float(np.mean(upper))}


def softmax(x: Row) -> Row:
    e = np.exp(x - x.max())
    found: Row = e / e.sum()
    return found


def jacobian(a: Row) -> float:
    return float(np.linalg.eigvalsh(np.diag(a) - np.outer(a, a)).max())


def entropy_floor(x: Row) -> float:
    n, sigma = len(x), float(np.linalg.norm(x - x.mean()))
    beta = np.exp(-sigma * np.sqrt(n / (n - 1)))
    found = np.log(1 + (n - 1) * beta) + sigma * np.sqrt(n * (n - 1)) * beta / (1 + (n - 1) * beta)
    return float(found)
