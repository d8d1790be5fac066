"""Figures of evaluations: retrieval, loss by position, windows and relevance (needs `keysift[figures]`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keysift.core.errors import UnsupportedError
from keysift.records.evaluation import AS_TRAINED, LossByPosition, RelevanceMaps, Retrieval, Windows


def write(draw: Callable[[Any], None], stem: Path, *, size: tuple[float, float] = (7.0, 4.0)) -> list[Path]:
    """Write `stem`.png and `stem`.svg. `draw` draws on the axes it is given."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(f"figures need matplotlib ({error}); pip install 'keysift[figures]'") from error
    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    paths = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    for path in paths:
        # Without a date, the same record gives the same file.
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def retrieval(record: Retrieval) -> Callable[[Any], None]:
    """Heat map of accuracy by context length and depth; cells name their setting unless it is the model as trained."""
    lengths, depths = record.lengths, record.depths
    best = {(length, depth): record.best(length, depth) for depth in depths for length in lengths}

    def draw(axes: Any) -> None:
        shares = [[best[length, depth].accuracy for length in lengths] for depth in depths]
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="upper")
        for y, depth in enumerate(depths):
            for x, length in enumerate(lengths):
                cell = best[length, depth]
                label = f"{100 * cell.accuracy:.0f}"
                if cell.setting != AS_TRAINED:
                    label += f"\n{cell.setting}"
                colour = "white" if cell.accuracy < 0.6 else "black"
                axes.text(x, y, label, ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
        axes.set_xlabel("context length in tokens")
        axes.set_ylabel("depth of the needle")
        axes.set_title(f"{record.task}: {record.subject.name}, {record.subject.parameters:,} parameters")
        trained = record.subject.trained_length
        if trained is not None and lengths[0] <= trained < lengths[-1]:
            axes.axvline(sum(length <= trained for length in lengths) - 0.5, color="red", linestyle="--")
        axes.figure.colorbar(image, ax=axes, label="accuracy")

    return draw


def positions(record: LossByPosition) -> Callable[[Any], None]:
    """Line chart of the loss by position, one line per setting."""

    def draw(axes: Any) -> None:
        for setting in dict.fromkeys(point.setting for point in record.points):
            line = [point for point in record.points if point.setting == setting]
            axes.errorbar(
                [point.context for point in line],
                [point.nats for point in line],
                yerr=[point.error for point in line],
                label=setting,
                capsize=2,
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("preceding tokens")
        axes.set_ylabel("nats per token")
        axes.set_title(f"Loss by position: {record.subject.name}")
        if record.subject.trained_length is not None:
            axes.axvline(record.subject.trained_length, color="red", linestyle="--", label="training length")
        axes.legend()

    return draw


def windows(record: Windows) -> Callable[[Any], None]:
    """Scatter plot of tiles by window and acceptance width; a ring marks tiles where some queries accept no key."""

    def draw(axes: Any) -> None:
        tiles = [head for head in record.heads if head.window is not None and head.acceptance is not None]
        if not tiles:
            raise UnsupportedError(f"{record.subject.name} has no learned windows to draw")
        points = axes.scatter(
            [tile.window for tile in tiles],
            [tile.acceptance for tile in tiles],
            c=[tile.layer for tile in tiles],
            s=[20 + 200 * tile.accepted for tile in tiles],
            edgecolors=["black" if tile.nothing > 0 else "none" for tile in tiles],
            alpha=0.8,
        )
        axes.set_xscale("log")
        axes.set_xlabel("window w in tokens")
        axes.set_ylabel("acceptance width r")
        axes.set_title(
            f"Tiles of {record.subject.name}; area: share of accepted keys; ring: some queries accept no key"
        )
        if record.subject.trained_length is not None:
            axes.axvline(record.subject.trained_length, color="red", linestyle="--")
        axes.figure.colorbar(points, ax=axes, label="layer")

    return draw


def relevance(record: RelevanceMaps) -> Callable[[Any], None]:
    """One row of maps per layer, queries from top to bottom and keys from left to right; exact zeros are white."""

    def draw(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        columns = max(len(layer.heads) for layer in record.layers)
        figure.set_size_inches(1.6 * columns + 1.2, 1.7 * len(record.layers) + 0.5)
        panels = figure.subplots(len(record.layers), columns, squeeze=False)
        for row, layer in zip(panels, record.layers, strict=True):
            for panel in row[len(layer.heads) :]:
                panel.remove()
            for panel, head in zip(row, layer.heads, strict=False):
                weights = [[weight if weight else float("nan") for weight in line] for line in head.weights]
                image = panel.imshow(weights, cmap="viridis_r", vmin=0, aspect="equal", interpolation="nearest")
                panel.set_title(head.name.removeprefix("layers."), fontsize=7)
                panel.tick_params(labelsize=6)
                figure.colorbar(image, ax=panel, shrink=0.7).ax.tick_params(labelsize=6)
        figure.suptitle(f"Relevance: {record.subject.name} on {record.text}", fontsize=9)

    return draw
