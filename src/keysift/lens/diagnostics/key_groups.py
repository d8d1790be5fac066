"""Groups of keys with similar directions, and the bound by which exact search leaves whole groups unread.

Where scores are cosines, a threshold accepts the keys in a cap around the query. A group with the centre c and the
reach rho, the largest angle between c and one of its keys, has

    score <= cos(max(0, angle(q, c) - rho))

so a group whose bound is at most the threshold holds no accepted key (docs/search.md). Here the keys that the last
query of a text sees are divided into about sqrt(S) groups. Each group starts from the key that is farthest from the
groups before it, so that all are narrow. The search of the compiled step divides only the old keys of long texts.

Letters: S keys, G groups, K key width.
"""

import math

import torch
from torch import Tensor

from keysift.lens.diagnostics.acceptance import per_head_scalar
from keysift.lens.layer_view import Block, LayerView
from keysift.records.lens_maps import KeyGroup

MOST = 24  # groups of a head
_ROUNDING = 1e-6  # of scores in fp32


def key_groups(view: LayerView, text: int, last: Block) -> list[tuple[KeyGroup, ...]]:
    """The groups of each head for the last query of a text, in the text's last block; none if no score is a cosine."""
    if not view.mechanism.cosine_scores or view.mechanism.maps > 1 or view.call.bias is not None:
        return [()] * view.heads
    visible_HS = last.visible_HTS[:, -1]
    window_H = per_head_scalar(view, "effective_window")
    if window_H is not None:
        distance_S = last.at_T[-1] - torch.arange(visible_HS.shape[1])
        visible_HS = visible_HS & (distance_S < window_H[:, None])
    q_HK, k_HSK = view.last_query_and_keys(text)
    return [
        _groups(q_K.double(), k_SK[: len(visible_S)][visible_S].double())
        for q_K, k_SK, visible_S in zip(q_HK, k_HSK, visible_HS, strict=True)
    ]


def _groups(q_K: Tensor, k_SK: Tensor) -> tuple[KeyGroup, ...]:
    if not len(k_SK) or not k_SK.isfinite().all():
        return ()
    member_S = _divide(k_SK, min(MOST, math.isqrt(len(k_SK) - 1) + 1))
    score_S = k_SK @ q_K
    groups = []
    for number in sorted(set(member_S.tolist())):
        inside_S = member_S == number
        keys_SK = k_SK[inside_S]
        c_K = torch.nn.functional.normalize(keys_SK.sum(0), dim=0)
        centre, reach = float((c_K @ q_K).clamp(-1, 1)), float((keys_SK @ c_K).amin().clamp(-1, 1))
        near = max(0.0, math.acos(centre) - math.acos(reach))
        groups.append(
            KeyGroup(
                size=len(keys_SK),
                centre=centre,
                reach=reach,
                bound=min(1.0, math.cos(near) + _ROUNDING),
                best=float(score_S[inside_S].amax()),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.bound))


def _divide(k_SK: Tensor, count: int) -> Tensor:
    """The group of each key, S: that of the nearest of `count` keys that are far from each other."""
    nearest_S = k_SK @ k_SK[-1]
    member_S = torch.zeros(len(k_SK), dtype=torch.long)
    for group in range(1, count):
        cosine_S = k_SK @ k_SK[int(nearest_S.argmin())]
        member_S[cosine_S > nearest_S] = group
        nearest_S = torch.maximum(nearest_S, cosine_S)
    return member_S
