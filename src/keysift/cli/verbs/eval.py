"""Evaluate one model (loss, positions, retrieval, windows, relevance, lm) or compare runs (stability, scaling)."""

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
        check_model_or_preset(args.do.model)
    from keysift.cli.evaluation.measure import evaluate, run_evals
    from keysift.cli.evaluation.output import show

    show(evaluate(args.do), args.do.output, run_evals(args.do))
