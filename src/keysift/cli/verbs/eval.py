"""Evaluate models (loss), one model (positions, retrieval, windows, relevance, lm) or runs (stability, scaling)."""

from typing import Annotated

import tyro

from keysift.cli.evaluation.flags import Lm, Loss, Positions, Relevance, Retrieval, Scaling, Stability, Windows
from keysift.core.config import config
from keysift.models.model_type import check_model_or_preset


@config
class Args:
    do: (
        Annotated[Loss, tyro.conf.subcommand("loss")]
        | Annotated[Positions, tyro.conf.subcommand("positions")]
        | Annotated[Retrieval, tyro.conf.subcommand("retrieval")]
        | Annotated[Windows, tyro.conf.subcommand("windows")]
        | Annotated[Relevance, tyro.conf.subcommand("relevance")]
        | Annotated[Stability, tyro.conf.subcommand("stability")]
        | Annotated[Scaling, tyro.conf.subcommand("scaling")]
        | Annotated[Lm, tyro.conf.subcommand("lm")]
    )


def run(args: Args) -> None:
    if isinstance(args.do, Lm):
        from keysift.cli.evaluation import lm as eval_lm

        eval_lm.run(args.do)
        return
    if isinstance(args.do, Stability | Scaling):
        from keysift.sweep.trials import trial_runs

        trial_runs(args.do.folders)
    else:
        for model in args.do.models if isinstance(args.do, Loss) else (args.do.model,):
            check_model_or_preset(model)
    from keysift.cli.evaluation.measure import each_model, evaluate, run_evals
    from keysift.cli.evaluation.output import show, store

    results = []
    for do in each_model(args.do):
        results.append(evaluate(do))
        store(results[-1], do.output.out, run_evals(do))
    show(results, args.do.output)
