"""Groups of keys: every key is in one, no key scores above the bound of its group, and softmax has none."""

import pytest
import torch

from keysift.lens.diagnostics.key_groups import _groups, key_groups
from keysift.lens.diagnostics.threshold import threshold
from keysift.lens.layer_view import LayerView
from keysift.records.lens_maps import KeyGroup
from tests.lens.models import LINE, multiscreen, transformer


def test_no_accepted_key_is_in_a_group_that_stays_closed() -> None:
    model = multiscreen()
    seen: list[tuple[KeyGroup, ...]] = []

    def visit(view: LayerView) -> None:
        *_, last = view.text_blocks(0)
        threshold_H = threshold(view)
        assert threshold_H is not None
        for head, groups in enumerate(key_groups(view, 0, last)):
            accepted = int((last.weights_HTS[head, -1] > 0).sum())
            scores = last.scores_HTS[head, -1]
            opened = [group for group in groups if group.bound > float(threshold_H[head])]
            assert all(group.best <= group.bound for group in groups)
            assert sum(group.size for group in opened) >= accepted
            if groups:
                assert max(group.best for group in groups) <= float(scores.max()) + 1e-5
                assert (accepted > 0) <= bool(opened)
            seen.append(groups)

    model.run([model.encode(LINE)], visit)
    assert len(seen) == 6
    assert any(len(groups) > 1 for groups in seen)


def test_groups_of_three_directions() -> None:
    """Keys around three axes: three groups, of which the query along the first axis opens one."""
    draws = torch.Generator().manual_seed(0)
    axes = torch.eye(8)[:3].repeat_interleave(3, dim=0)
    keys = torch.nn.functional.normalize(axes + 0.02 * torch.randn(9, 8, generator=draws), dim=1)
    groups = _groups(torch.eye(8)[0].double(), keys.double())
    assert [group.size for group in groups] == [3, 3, 3]
    assert [group.bound > 0.5 for group in groups] == [True, False, False]
    assert groups[0].best == pytest.approx(float(keys[:3, 0].max()), abs=1e-6)
    assert groups[0].reach > 0.98
    assert _groups(torch.eye(8)[0].double(), keys[:0].double()) == ()


def test_scores_that_are_not_cosines_have_no_groups() -> None:
    model = transformer()

    def visit(view: LayerView) -> None:
        *_, last = view.text_blocks(0)
        assert key_groups(view, 0, last) == [()] * view.heads

    model.run([model.encode(LINE)], visit)
