"""Synthetic records for a report: every figure has data, and every name is hostile text."""

from dataclasses import replace
from pathlib import Path

from keysift.core.config import load
from keysift.records.bench import Result
from keysift.records.evaluation import (
    Cell,
    Head,
    HeadMap,
    LayerMaps,
    LossByPosition,
    Point,
    RelevanceMaps,
    Retrieval,
    Subject,
    TextLoss,
    Windows,
)
from keysift.records.report import Report, ReportRun, TextSample
from keysift.records.runs import Comparison, RunLabel, RunSummary
from keysift.records.trials import Scaling, Stability, Trial
from keysift.runs.compare import compare, run_labels
from tests.runs.handwritten import PROVENANCE

HOSTILE = "<script>alert(1)</script>\u202e&amp;'\""
LENGTHS, DEPTHS = (64, 128, 256), (0.1, 0.9)


def subject(name: str, kind: str) -> Subject:
    return Subject(name=name, kind=kind, parameters=1000, trained_length=64, step=10)


def retrieval(name: str, kind: str, settings: tuple[str, ...], decay: float) -> Retrieval:
    """Accuracy decays with the length, except in the last setting."""
    cells = tuple(
        Cell(
            length=length,
            depth=depth,
            setting=setting,
            correct=round(20 * (1.0 if setting == settings[-1] else decay**at)),
            total=20,
        )
        for at, length in enumerate(LENGTHS)
        for depth in DEPTHS
        for setting in settings
    )
    return Retrieval(subject=subject(name, kind), task="recall", chance=0.0625, cells=cells, made=PROVENANCE)


def records(name: str, kind: str, settings: tuple[str, ...], decay: float) -> tuple:
    about = subject(name, kind)
    points = tuple(
        Point(context=n, setting=setting, nats=2.0 + at / 10, error=0.1, documents=3)
        for at, n in enumerate((16, 64, 256))
        for setting in settings
    )
    is_multiscreen = kind == "multiscreen"
    heads = tuple(
        Head(
            layer=layer,
            head=head,
            window=10.0**head if is_multiscreen else None,
            acceptance=0.5 if is_multiscreen else None,
            accepted=0.2,
            nothing=0.1,
            mass=0.7,
        )
        for layer in range(2)
        for head in range(2)
    )
    weights = ((0.0, 0.0, 0.0), (0.5, 0.0, 0.0), (0.25, 0.0, 1.0))
    map_ = HeadMap(name="layers.0.heads.0", weights=weights, scores=weights, threshold=None)
    maps = (LayerMaps(heads=(map_,)), LayerMaps(heads=(map_,)))
    return (
        retrieval(name, kind, settings, decay),
        LossByPosition(subject=about, text=HOSTILE, points=points, made=PROVENANCE),
        TextLoss(
            subject=about,
            text="t",
            tokens=9,
            bytes=9,
            nats=2.0,
            bits_per_byte=2.9,
            context=8,
            stride=4,
            made=PROVENANCE,
        ),
        Windows(subject=about, text=HOSTILE, tokens=50, heads=heads, made=PROVENANCE),
        RelevanceMaps(subject=about, text=HOSTILE, tokens=(HOSTILE, "b", "c"), layers=maps, made=PROVENANCE),
    )


def run(
    name: str,
    arch: str,
    evaluations: tuple = (),
    *,
    parameters: int = 1000,
    lr: float = 2.0**-6,
    group: str = "",
) -> ReportRun:
    settings = {"depth": 2, "tiles": 2, "width": 4, "lr": lr, "batch_tokens": 512, "seed": 0, "context": 64}
    settings |= {} if arch == "multiscreen" else {"heads": 2, "mechanism": "softmax"}
    return ReportRun(
        label=RunLabel(name=name, group=group or name, model=group or name),
        summary=RunSummary(
            path=f"runs/{name}",
            arch=arch,
            settings=settings,
            parameters=parameters,
            data="recall",
            step=10,
            steps=10,
            saved=10,
            state="finished",
            loss=1.0,
            val_loss=1.1,
            bits_per_byte=None,
            accuracy=0.9,
            tokens_per_second=100.0,
            losses=tuple(5.0 - n / 3 for n in range(10)),
            validations=((5, 3.0), (10, 1.1)),
        ),
        stream="abcdef0123456789",
        command=f"keysift train --out {name}",
        seconds=61.0,
        flops=1e12,
        machine="a CPU",
        records=evaluations,
        samples=(TextSample(step=10, text=HOSTILE),),
    )


def trial(model: str, rate: float, seed: int, loss: float | None, parameters: int = 1000) -> Trial:
    return Trial(
        run="r",
        family=model,
        model=model,
        parameters=parameters,
        tokens=5120,
        rate=rate,
        seed=seed,
        loss=loss,
        warmup_loss=5.0,
        state="diverged" if loss is None else "finished",
    )


def report() -> Report:
    multiscreen, transformer = "multiscreen psi 2, screening", "transformer 2x2x4, softmax"
    trials = tuple(
        trial(model, rate, seed, None if (model, rate) == (transformer, 0.25) and seed else 2 + seed / 10 + rate)
        for model in (multiscreen, transformer)
        for rate in (2.0**-6, 0.25)
        for seed in (0, 1)
    )
    sizes = tuple(trial(multiscreen, 0.01, 0, 3 - n / 10**4, parameters=n) for n in (1000, 4000))
    name = f"multiscreen {HOSTILE}"
    return Report(
        title=f"Recall {HOSTILE}",
        command=f"keysift report {HOSTILE}",
        date="2026-01-01",
        summary=(HOSTILE,),
        runs=(
            run(name, "multiscreen", records(name, "multiscreen", ("as trained", "windows expanded"), 1.0)),
            run(
                "transformer",
                "transformer",
                records("transformer", "transformer", ("as trained", "RoPE x2", "RoPE x4"), 0.5),
            ),
        ),
        stability=(Stability(source="sweeps/rates", trials=trials, made=PROVENANCE),),
        scaling=(Scaling(source="sweeps/sizes", trials=sizes, made=PROVENANCE),),
        latency=(load(Result, Path(__file__).parents[3] / "docs" / "results" / "models.json"),),
        notes=(f"left out: {HOSTILE}",),
    )


RATES, RUN_SEEDS = (2.0**-6, 2.0**-4), (0, 1, 2)


def sweep_runs() -> dict[str, RunSummary]:
    """Runs of a sweep by directory name: two models, two rates, three seeds, with the long names of a sweep."""
    runs = {}
    for arch in ("multiscreen", "transformer"):
        for lr in RATES:
            for seed in RUN_SEEDS:
                name = f"arch={arch}_depth=2_heads=2_width=32_batch_tokens=512_data=recall_lr={lr:g}_seed={seed}"
                summary = run(name, arch, lr=lr).summary
                loss = 1.0 + lr + seed / 10
                runs[name] = replace(
                    summary,
                    settings=summary.settings | {"seed": seed},
                    validations=((5, 3.0), (10, loss)),
                    val_loss=loss,
                    losses=tuple(5.0 - n / 30 + seed / 10 for n in range(100)),
                )
    return runs


def sweep_comparison() -> Comparison:
    return compare(list(sweep_runs().values()), list(sweep_runs()))


def sweep_report() -> Report:
    """Report of the runs of a sweep, where the best settings have long names and the models many layers."""
    runs = sweep_runs()
    labels = run_labels(list(runs.values()), list(runs))
    full = report()
    report_runs = []
    for label, (name, summary) in zip(labels, runs.items(), strict=True):
        settings = ("as trained", "windows expanded" if summary.arch == "multiscreen" else "RoPE x64")
        loss, position, text, windows, maps = records(name, summary.arch, settings, 0.5)
        heads = tuple(replace(windows.heads[at % 4], layer=at // 2, head=at % 2) for at in range(96))
        evaluations = (loss, position, text, replace(windows, heads=heads), maps)
        report_runs.append(replace(run(name, summary.arch, evaluations), label=label, summary=summary))
    trials = tuple(
        trial(summary.model, float(summary.settings["lr"]), int(summary.settings["seed"]), summary.val_loss)
        for summary in runs.values()
    )
    return replace(full, runs=tuple(report_runs), stability=(replace(full.stability[0], trials=trials),))
