"""The measurements of `keysift eval`: each calls one function and lays out its record as rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keysift.cli.evaluation import flags
from keysift.cli.evaluation.output import EvalResult
from keysift.cli.flags.command_line import command_line
from keysift.cli.terminal.progress import ProgressBar
from keysift.core.config import to_dict
from keysift.core.errors import ConfigError
from keysift.evaluate.loss import measure_loss
from keysift.evaluate.measured_model import open_measured_model
from keysift.evaluate.positions import measure_positions
from keysift.evaluate.retrieval import MeasureCells, inference_settings, measure_retrieval
from keysift.evaluate.retrieval_tasks import default_lengths
from keysift.evaluate.windows import measure_windows
from keysift.nn.inference import Inference
from keysift.records.evaluation import Cell, Subject, Windows, summarize_maps
from keysift.records.trials import Scaling, Stability
from keysift.runs.layout import EVALS, is_run_directory
from keysift.sweep.evaluate_runs import default_position_length, measure_relevance, powers_of_two
from keysift.sweep.trials import read_scaling, read_stability
from keysift.web.figures import evaluation as figures
from keysift.web.figures import runs as run_figures


def each_model(args: flags.Evaluation) -> list[flags.Evaluation]:
    """The same evaluation for each of its models. With --out, each model of several has a folder of its own there."""
    if not isinstance(args, flags.Loss):
        return [args]
    if not args.models:
        raise ConfigError("eval loss needs a model; give a run, a checkpoint, a saved model or a preset")
    if len(args.models) == 1:
        return [args]
    alone: list[flags.Evaluation] = []
    for number, model in enumerate(args.models, 1):
        out = None if args.output.out is None else args.output.out / f"{number}-{Path(model).resolve().name}"
        alone.append(replace(args, models=(model,), output=replace(args.output, out=out)))
    return alone


def evaluate(args: flags.Evaluation) -> EvalResult:
    """Run the measurement that these flags describe."""
    command = command_line(f"eval {type(args).__name__.lower()}", args, without=("output", "place"))
    return _EVALUATIONS[type(args)](args, command)


def run_evals(args: flags.Evaluation) -> Path | None:
    """The folder evals of the run that is measured; None if it is not a run."""
    model = args.models[0] if isinstance(args, flags.Loss) else getattr(args, "model", None)
    return Path(model) / EVALS if model is not None and is_run_directory(Path(model)) else None


def loss(args: flags.Loss, command: str) -> EvalResult:
    measured = open_measured_model(args.models[0])
    with ProgressBar() as progress:
        record, ids, losses = measure_loss(
            measured,
            args.text,
            tokens=args.tokens,
            context=args.context,
            stride=args.stride,
            command=command,
            on_tokens=lambda scored, total: progress.update("tokens", scored, total),
        )
    rows = [
        {"token": number, "id": int(token), "nats": float(nats)}
        for number, (token, nats) in enumerate(zip(ids, losses, strict=True), 1)
    ]
    nats, bits = f"{record.nats:.4f}", f"{record.bits_per_byte:.4f}"
    table = [{"tokens": record.tokens, "nats per token": nats, "bits per byte": bits}]
    return EvalResult("loss", record, rows, _title(record.subject), table=table)


def positions(args: flags.Positions, command: str) -> EvalResult:
    measured = open_measured_model(args.model)
    length = args.length or default_position_length(measured)
    with ProgressBar() as progress:
        record = measure_positions(
            measured,
            args.text,
            length=length,
            contexts=powers_of_two(length),
            documents=args.documents,
            settings=_settings(args.beyond),
            command=command,
            on_document=lambda setting, done, total: progress.update("documents", done, total, setting),
        )
    rows = [to_dict(point) for point in record.points]
    return EvalResult("positions", record, rows, _title(record.subject), draw=figures.positions(record))


def retrieval(args: flags.Retrieval, command: str) -> EvalResult:
    measured = open_measured_model(args.model)
    lengths = args.lengths or default_lengths(args.task, measured.subject.trained_length)
    settings = _settings(args.beyond)
    total, done = len(lengths) * len(args.depths) * len(settings), 0
    with ProgressBar() as progress, _elsewhere(args) as elsewhere:

        def on_cell(cell: Cell) -> None:
            nonlocal done
            done += 1
            detail = f"{cell.length:,} tokens, depth {cell.depth:g}: {100 * cell.accuracy:.0f}%"
            progress.update("cells", done, total, detail)

        record = measure_retrieval(
            measured,
            args.task,
            lengths=lengths,
            depths=args.depths,
            settings=settings,
            instances=args.instances,
            seed=args.seed,
            log_folder=args.output.out or run_evals(args),
            command=command,
            on_cell=on_cell,
            elsewhere=elsewhere,
        )
    rows = [
        to_dict(cell) | {"accuracy": cell.accuracy, "low": cell.interval[0], "high": cell.interval[1]}
        for cell in record.cells
    ]
    return EvalResult(args.task, record, rows, _title(record.subject), draw=figures.retrieval(record))


@contextmanager
def _elsewhere(args: flags.Retrieval) -> Iterator[MeasureCells | None]:
    """What measures the cells on Ray; None if they are measured here."""
    if args.place.on == "here":
        yield None
        return
    from keysift.data.cluster import connect
    from keysift.sweep.on_ray import measure_cells

    with connect(args.place.address) as ray:
        yield partial(measure_cells, ray, args.model, args.task, instances=args.instances, seed=args.seed)


def windows(args: flags.Windows, command: str) -> EvalResult:
    record = measure_windows(
        open_measured_model(args.model),
        args.text,
        tokens=args.tokens,
        lengths=args.lengths,
        expand_windows=args.expand_windows,
        command=command,
    )
    has_windows = any(head.window is not None for head in record.heads)
    return EvalResult(
        "windows",
        record,
        [to_dict(count) for count in record.counts] or [to_dict(head) for head in record.heads],
        _title(record.subject),
        table=_counts_by_length(record) if record.counts else None,
        draw=figures.windows(record) if has_windows else None,
    )


def _counts_by_length(record: Windows) -> list[dict[str, Any]]:
    """One row per tile; for each length the shares of the keys in the window that were accepted and read."""
    rows = []
    for head in record.heads:
        row: dict[str, Any] = {"layer": head.layer, "head": head.head}
        row |= {"window": head.window, "acceptance": head.acceptance}
        for count in record.counts:
            if (count.layer, count.head) == (head.layer, head.head):
                accepted, read = (100 * keys / count.in_window for keys in (count.accepted, count.read))
                row[f"{count.length:,}: accepted / read"] = f"{accepted:.3g}% / {read:.3g}%"
        rows.append(row)
    return rows


def relevance(args: flags.Relevance, command: str) -> EvalResult:
    record = measure_relevance(open_measured_model(args.model), args.text, tokens=args.tokens, command=command)
    rows = [
        {"head": head.name, "query": query, "key": key, "weight": weight}
        for layer in record.layers
        for head in layer.heads
        for query, weights in enumerate(head.weights)
        for key, weight in enumerate(weights)
        if weight != 0
    ]
    table = [to_dict(head) for head in summarize_maps(record)]
    return EvalResult("relevance", record, rows, _title(record.subject), table=table, draw=figures.relevance(record))


def stability(args: flags.Stability, command: str) -> EvalResult:
    record = read_stability(args.folders)
    return _trials("stability", record, run_figures.stability(record))


def scaling(args: flags.Scaling, command: str) -> EvalResult:
    record = read_scaling(args.folders)
    return _trials("scaling", record, run_figures.scaling(record))


def _trials(name: str, record: Stability | Scaling, draw: Callable[[Any], None]) -> EvalResult:
    rows = [to_dict(trial) for trial in record.trials]
    table = [
        {
            "name": group.name,
            "parameters": group.parameters,
            "rate": group.rate,
            "mean": group.losses and group.losses.mean,
            "std": group.losses and group.losses.std,
            "seeds": len(group.losses) if group.losses else 0,
            "diverged": group.diverged,
        }
        for group in record.points
    ]
    return EvalResult(name, record, rows, f"{len(rows)} runs in {record.source}", table=table, draw=draw)


def _settings(beyond: flags.Beyond) -> dict[str, Inference]:
    return inference_settings(
        beyond.rope_factors, rope_scalings=beyond.rope_scalings, expand_windows=beyond.expand_windows
    )


def _title(subject: Subject) -> str:
    return f"{subject.name}: {subject.kind}, {subject.parameters:,} parameters"


_EVALUATIONS: dict[type[Any], Callable[[Any, str], EvalResult]] = {
    flags.Loss: loss,
    flags.Positions: positions,
    flags.Retrieval: retrieval,
    flags.Windows: windows,
    flags.Relevance: relevance,
    flags.Stability: stability,
    flags.Scaling: scaling,
}
