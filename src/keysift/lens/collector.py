"""Compute the row diagnostics of every layer that is visited, and collect their statistics.

Cheap diagnostics are computed for every row, expensive ones (geometry, sensitivity) for `sample` evenly spaced rows of
each context bucket.

Letters: H heads, T queries of a block, Q selected queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.lens.diagnostics import geometry, rows, sensitivity
from keysift.lens.diagnostics.absolute_percentile import Calibration, Examples, brightness
from keysift.lens.diagnostics.acceptance import AcceptanceCurves, per_head_scalar
from keysift.lens.diagnostics.removal import removal_effect
from keysift.lens.diagnostics.rows import Numbers
from keysift.lens.diagnostics.sinks import SinkStatistics
from keysift.lens.diagnostics.threshold import threshold
from keysift.lens.head_statistics import LayerStatistics, bucket_of
from keysift.lens.layer_view import Block, LayerView
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise

FIT_FROM = 8  # rows with fewer visible keys say little about the trend with context length


class Collector:
    """Visits layers and keeps their statistics in `layers`."""

    def __init__(
        self, longest: int, *, sample: int = 16, seed: int = 0, calibration: Calibration | None = None
    ) -> None:
        self.buckets = int(math.log2(longest)) + 1
        self.sample = sample
        self.seed = seed
        self.calibration = calibration
        self.examples = Examples()
        self.text_offset = 0  # number of texts in earlier batches
        self.layers: dict[int, LayerStatistics] = {}
        self.acceptance: dict[int, AcceptanceCurves] = {}
        self._sinks: dict[int, SinkStatistics] = {}

    def visit(self, view: LayerView) -> None:
        statistics = self.layers.setdefault(view.layer, LayerStatistics(view.heads, self.buckets))
        threshold_H = threshold(view)
        sinks = self._sinks.setdefault(view.layer, SinkStatistics(view.heads, view.call.v.shape[-1]))
        curves = AcceptanceCurves.of(view) if self.calibration is not None else None
        if curves is not None:
            curves = self.acceptance.setdefault(view.layer, curves)
        for block in view.blocks():
            sinks.add_outputs(block)
            if curves is not None:
                curves.add(block)
            if block.first == 0:
                sinks.add_values(block.all_values_HSV)
            numbers = rows.dispersion(block) | rows.mass_by_position(block) | rows.retained(block)
            if Promise.SUMS_TO_ONE in view.mechanism.holds:
                numbers |= rows.focus(block)
            if Promise.EXACT_ZERO in view.mechanism.holds:
                numbers |= rows.accepted(block)
            if threshold_H is not None:
                numbers |= rows.threshold_distance(block, threshold_H)
            if self.calibration is not None:
                absolute = Promise.ABSOLUTE in view.mechanism.holds
                brightest, key_HT = brightness(block, self.calibration, absolute=absolute)
                self.examples.add(block, self.text_offset + block.text, brightest, key_HT)
                numbers |= brightest
            statistics.add(numbers, bucket_of(block.n_HT))
            _add_points(statistics, numbers, block.n_HT)
            selected = self._selected(block)
            if len(selected):
                block = block.select(selected)
                statistics.add(self._expensive(block, view), bucket_of(block.n_HT))
        statistics.whole |= {name: value_H.numpy() for name, value_H in sinks.numbers().items()}
        for name, scalar in (("window", "effective_window"), ("acceptance", "acceptance")):
            value = per_head_scalar(view, scalar)
            if value is not None:
                statistics.whole[name] = value.double().numpy()

    def _selected(self, block: Block) -> Tensor:
        """At most `sample` rows of each bucket, selected by position so that the block size has no effect."""
        if self.sample == 0:
            return block.at_T[:0]
        n_T = block.at_T + 1
        low_T = 2 ** bucket_of(n_T)
        step_T = torch.div(low_T + self.sample - 1, self.sample, rounding_mode="floor")
        return torch.nonzero((n_T - low_T) % step_T == 0).flatten()

    def _expensive(self, block: Block, view: LayerView) -> Numbers:
        heads, _, keys = block.weights_HTS.shape
        # Each row draws for its own keys from its own seed, so that the block size has no effect.
        random = torch.zeros(block.weights_HTS.shape)
        for row, at in enumerate(block.at_T.tolist()):
            random[:, row, : at + 1] = torch.rand(heads, at + 1, generator=self._generator(block, at))
        all_values = block.all_values_HSV
        shuffle = torch.randperm(all_values.shape[1], generator=self._generator(block, 0))[:keys]
        numbers = geometry.geometry(
            block.weights_HTS, block.visible_HTS, block.values_HSV, random, all_values[:, shuffle]
        )
        numbers |= rows.keys_for_mass(block) | removal_effect(block)
        if view.mechanism.name == SOFTMAX.name:  # the formulas of sensitivity.py are those of softmax
            normal = torch.special.ndtri(random.clamp(1e-6, 1 - 1e-6))
            numbers |= sensitivity.sensitivity(block.scores_HTS, block.visible_HTS, normal, view.call.scale)
        return numbers

    def _generator(self, block: Block, at: int) -> torch.Generator:
        text = self.text_offset + block.text
        return torch.Generator().manual_seed(hash((self.seed, block.layer, text, at)) % 2**63)


def _add_points(statistics: LayerStatistics, numbers: Numbers, n_HT: Tensor) -> None:
    log_n, enough = n_HT.double().clamp_min(1).log(), n_HT >= FIT_FROM
    for suffix in ("", "_without_first"):
        log_largest = numbers[f"largest_weight{suffix}"].double().log()
        statistics.add_points(f"fading{suffix}", log_n, log_largest, enough)
    if "spread" in numbers:
        statistics.add_points("spread", log_n, numbers["spread"].double(), enough)
