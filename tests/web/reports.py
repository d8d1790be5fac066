"""Records for a report, made by hand: every figure has something to show, and every name is hostile."""

from pathlib import Path

from keysift.bench.record import Result
from keysift.core.config import load
from keysift.evaluate.measured import (
    Cell,
    Head,
    HeadMap,
    LayerMaps,
    LossByPosition,
    Point,
    Relevance,
    Retrieval,
    Subject,
    TextLoss,
    Windows,
)
from keysift.evaluate.measured_runs import Scaling, Stability, Trial
from keysift.runs.summary import Summary
from keysift.web.report_record import Report, ReportRun, Sample
from tests.runs.written import MADE

HOSTILE = "<script>alert(1)</script>\u202e&amp;'\""
LENGTHS, DEPTHS = (64, 128, 256), (0.1, 0.9)


def subject(name: str, kind: str) -> Subject:
    return Subject(name=name, kind=kind, parameters=1000, trained_length=64, step=10)


def retrieval(name: str, kind: str, settings: tuple[str, ...], falls: float) -> Retrieval:
    """Right answers fall with the length, except in the last setting."""
    cells = tuple(
        Cell(
            length=length,
            depth=depth,
            setting=setting,
            right=round(20 * (1.0 if setting == settings[-1] else falls**at)),
            asked=20,
        )
        for at, length in enumerate(LENGTHS)
        for depth in DEPTHS
        for setting in settings
    )
    return Retrieval(subject=subject(name, kind), task="recall", chance=0.0625, cells=cells, made=MADE)


def records(name: str, kind: str, settings: tuple[str, ...], falls: float) -> tuple:
    about = subject(name, kind)
    points = tuple(
        Point(context=n, setting=setting, nats=2.0 + at / 10, error=0.1, documents=3)
        for at, n in enumerate((16, 64, 256))
        for setting in settings
    )
    own = kind == "multiscreen"
    heads = tuple(
        Head(
            layer=layer,
            head=head,
            window=10.0**head if own else None,
            acceptance=0.5 if own else None,
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
        retrieval(name, kind, settings, falls),
        LossByPosition(subject=about, text=HOSTILE, points=points, made=MADE),
        TextLoss(
            subject=about, text="t", tokens=9, bytes=9, nats=2.0, bits_per_byte=2.9, context=8, stride=4, made=MADE
        ),
        Windows(subject=about, text=HOSTILE, tokens=50, heads=heads, made=MADE),
        Relevance(subject=about, text=HOSTILE, tokens=(HOSTILE, "b", "c"), layers=maps, made=MADE),
    )


def run(name: str, arch: str, found: tuple = (), *, parameters: int = 1000, lr: float = 2.0**-6) -> ReportRun:
    settings = {"depth": 2, "tiles": 2, "width": 4, "lr": lr, "batch_tokens": 512, "seed": 0, "context": 64}
    settings |= {} if arch == "multiscreen" else {"heads": 2, "mechanism": "softmax"}
    return ReportRun(
        name=name,
        summary=Summary(
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
        records=found,
        samples=(Sample(step=10, text=HOSTILE),),
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
        warmed=5.0,
        state="diverged" if loss is None else "finished",
    )


def report() -> Report:
    ours, theirs = "multiscreen psi 2, screening", "transformer 2x2x4, softmax"
    trials = tuple(
        trial(model, rate, seed, None if (model, rate) == (theirs, 0.25) and seed else 2 + seed / 10 + rate)
        for model in (ours, theirs)
        for rate in (2.0**-6, 0.25)
        for seed in (0, 1)
    )
    sizes = tuple(trial(ours, 0.01, 0, 3 - n / 10**4, parameters=n) for n in (1000, 4000))
    name = f"ours {HOSTILE}"
    return Report(
        title=f"Recall {HOSTILE}",
        command=f"keysift report {HOSTILE}",
        date="2026-01-01",
        summary=(HOSTILE,),
        runs=(
            run(name, "multiscreen", records(name, "multiscreen", ("as trained", "windows expanded"), 1.0)),
            run("theirs", "transformer", records("theirs", "transformer", ("as trained", "RoPE x2", "RoPE x4"), 0.5)),
        ),
        stability=(Stability(source="sweeps/rates", trials=trials, made=MADE),),
        scaling=(Scaling(source="sweeps/sizes", trials=sizes, made=MADE),),
        latency=(load(Result, Path(__file__).parents[2] / "docs" / "results" / "models.json"),),
        notes=(f"left out: {HOSTILE}",),
    )
