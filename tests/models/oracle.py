"""The equations of the papers in float64, element by element. Shares no code with src/.

Numbers are 0-d tensors so that autograd gives every gradient; every sum is a Python loop. Positions count from `start`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Row = list[Tensor]


def _matrix(p: Tensor) -> list[Row]:
    return [list(row.unbind()) for row in p.unbind()]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


def _apply(matrix: list[Row], x: Row) -> Row:
    return [_dot(row, x) for row in matrix]


def _unit(x: Row) -> Row:
    n = torch.sqrt(_dot(x, x))
    n = n if n > 1e-12 else torch.tensor(1e-12, dtype=torch.float64)
    return [c / n for c in x]


def _rotate_pair(x0: Tensor, x1: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    c, s = torch.cos(angle), torch.sin(angle)
    return x0 * c - x1 * s, x0 * s + x1 * c


def _mipe(x: Row, i: int, w: Tensor, w_th: float) -> Row:
    gamma = (torch.cos(math.pi * w / w_th) + 1) / 2 if w < w_th else torch.zeros((), dtype=torch.float64)
    a, b = _rotate_pair(x[0], x[1], math.pi * i * gamma / w)
    return [a, b, *x[2:]]


def _rope(x: Row, i: int, factor: float, theta: float) -> Row:
    half = len(x) // 2
    out = list(x)
    for c in range(half):
        angle = torch.tensor(i / factor * theta ** (-2 * c / len(x)), dtype=torch.float64)
        out[c], out[c + half] = _rotate_pair(x[c], x[c + half], angle)
    return out


class AcceptedPairs:
    """Count of causal pairs with relevance above zero. A comparison of zeros would prove nothing."""

    def __init__(self) -> None:
        self.pairs = 0
        self.accepted = 0

    @property
    def fraction(self) -> float:
        return self.accepted / self.pairs


def _tile(
    x: list[Row],
    p: dict[str, list[Row]],
    h: int,
    *,
    sizes: tuple[int, int],
    w: Tensor,
    r: Tensor,
    s_o: Tensor,
    position: str,
    w_th: float,
    norm: str,
    expand: int | None,
    factor: float,
    start: int,
    count: AcceptedPairs,
) -> list[Row]:
    width_k, width_v = sizes
    key_rows, value_rows = slice(h * width_k, (h + 1) * width_k), slice(h * width_v, (h + 1) * width_v)
    q = [_unit(_apply(p["q_proj"][key_rows], xi)) for xi in x]
    k = [_unit(_apply(p["k_proj"][key_rows], xi)) for xi in x]
    v = [_unit(_apply(p["v_proj"][value_rows], xi)) for xi in x]
    for i in range(len(x)):
        if position == "mipe":
            q[i], k[i] = _mipe(q[i], start + i, w, w_th), _mipe(k[i], start + i, w, w_th)
        elif position == "rope":
            q[i], k[i] = _rope(q[i], start + i, factor, 10_000.0), _rope(k[i], start + i, factor, 10_000.0)
    infinite = expand is not None and bool(w > expand)
    out = []
    for i in range(len(x)):
        hidden = [torch.zeros((), dtype=torch.float64) for _ in range(width_v)]
        for j in range(i + 1):
            t = 1 - (1 - _dot(q[i], k[j])) / r
            alpha = t * t if t > 0 else 0 * t
            if infinite:
                m = torch.ones((), dtype=torch.float64)
            elif -w < j - i:
                m = (torch.cos(math.pi * (j - i) / w) + 1) / 2
            else:
                m = torch.zeros((), dtype=torch.float64)
            count.pairs += 1
            count.accepted += int(j < i and bool(alpha * m > 0)) + int(j == i)
            hidden = [hc + alpha * m * vc for hc, vc in zip(hidden, v[j], strict=True)]
        if norm == "tanh":
            n = torch.sqrt(_dot(hidden, hidden))
            hidden = [torch.tanh(n) / n * c for c in hidden] if n > 0 else hidden
        if "gate_proj" in p:
            g = _apply(p["gate_proj"][value_rows], x[i])
            hidden = [c * torch.tanh(gc / (1 + torch.exp(-gc))) for c, gc in zip(hidden, g, strict=True)]
        out.append([torch.exp(s_o) * _dot(row[value_rows], hidden) for row in p["o_proj"]])
    return out


def multiscreen(
    state: dict[str, Tensor],
    tokens: list[int],
    *,
    depth: int,
    tiles: int,
    key_width: int,
    value_width: int,
    position: str = "mipe",
    w_th: float = 256,
    norm: str = "tanh",
    acceptance: float | None = None,
    expand: int | None = None,
    factor: float = 1.0,
    start: int = 0,
) -> tuple[Tensor, AcceptedPairs]:
    """Logits T N of one row of tokens, and the count of accepted pairs."""
    count = AcceptedPairs()
    table = [_unit(row) for row in _matrix(state["embedding.weight"])]
    s_e, s_f = state["embedding.s_E"], state["embedding.s_F"]
    x = [[torch.exp(s_e) * c for c in table[token]] for token in tokens]
    for layer in range(depth):
        prefix = f"layers.{layer}.tiles."
        p = {name: _matrix(state[f"{prefix}{name}.weight"]) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        if f"{prefix}gating.gate_proj.weight" in state:
            p["gate_proj"] = _matrix(state[f"{prefix}gating.gate_proj.weight"])
        updates = []
        for h in range(tiles):
            if acceptance is None:
                r = 1 / (1 + torch.exp(-state[f"{prefix}scalars.s_r"][h]))
            else:
                r = torch.tensor(acceptance, dtype=torch.float64)
            updates.append(
                _tile(
                    x,
                    p,
                    h,
                    sizes=(key_width, value_width),
                    w=torch.exp(state[f"{prefix}scalars.s_w"][h]) + 1,
                    r=r,
                    s_o=state[f"{prefix}s_O"][h],
                    position=position,
                    w_th=w_th,
                    norm=norm,
                    expand=expand,
                    factor=factor,
                    start=start,
                    count=count,
                )
            )
        for i in range(len(x)):
            for update in updates:
                x[i] = [c + d for c, d in zip(x[i], update[i], strict=True)]
    logits = [torch.stack([_dot(xi, [torch.exp(s_f) * c for c in row]) for row in table]) for xi in x]
    return torch.stack(logits), count


def _rms(x: Row, gain: Row | None) -> Row:
    root = torch.sqrt(_dot(x, x) / len(x) + 1e-5)
    return [c / root * (gain[i] if gain is not None else 1) for i, c in enumerate(x)]


def transformer(
    state: dict[str, Tensor],
    tokens: list[int],
    *,
    depth: int,
    heads: int,
    width: int,
    key_heads: int,
    rope: bool = True,
    theta: float = 10_000.0,
    factor: float = 1.0,
    start: int = 0,
) -> Tensor:
    """Logits T N of one row of tokens, by softmax attention."""
    table, d = _matrix(state["embedding.weight"]), width // heads
    x = [list(table[token]) for token in tokens]
    for layer in range(depth):
        prefix = f"layers.{layer}."
        weight = {n: _matrix(state[f"{prefix}attention.{n}.weight"]) for n in ("q_proj", "k_proj", "v_proj", "o_proj")}
        gains = {n: state.get(f"{prefix}attention.{n}.weight") for n in ("q_norm", "k_norm")}
        y = [_rms(xi, list(state[f"{prefix}attention_norm.weight"].unbind())) for xi in x]
        attended: list[Row] = [[] for _ in x]
        for h in range(heads):
            g = h // (heads // key_heads)
            q = [_apply(weight["q_proj"][h * d : (h + 1) * d], yi) for yi in y]
            k = [_apply(weight["k_proj"][g * d : (g + 1) * d], yi) for yi in y]
            v = [_apply(weight["v_proj"][g * d : (g + 1) * d], yi) for yi in y]
            for i in range(len(x)):
                if gains["q_norm"] is not None and gains["k_norm"] is not None:
                    q[i] = _rms(q[i], list(gains["q_norm"].unbind()))
                    k[i] = _rms(k[i], list(gains["k_norm"].unbind()))
                if rope:
                    q[i], k[i] = _rope(q[i], start + i, factor, theta), _rope(k[i], start + i, factor, theta)
            for i in range(len(x)):
                e = [torch.exp(_dot(q[i], k[j]) / math.sqrt(d)) for j in range(i + 1)]
                total = sum(e[1:], e[0])
                attended[i] += [_dot([ej / total for ej in e], [v[j][c] for j in range(i + 1)]) for c in range(d)]
        for i in range(len(x)):
            x[i] = [c + dc for c, dc in zip(x[i], _apply(weight["o_proj"], attended[i]), strict=True)]
            z = _rms(x[i], list(state[f"{prefix}mlp_norm.weight"].unbind()))
            gate = _apply(_matrix(state[f"{prefix}mlp.gate_proj.weight"]), z)
            up = _apply(_matrix(state[f"{prefix}mlp.up_proj.weight"]), z)
            inner = [a / (1 + torch.exp(-a)) * b for a, b in zip(gate, up, strict=True)]
            down = _apply(_matrix(state[f"{prefix}mlp.down_proj.weight"]), inner)
            x[i] = [c + dc for c, dc in zip(x[i], down, strict=True)]
    return torch.stack([torch.stack([_dot(_rms(xi, None), row) for row in table]) for xi in x])
