"""When a run has mastered a stage: its running accuracy on the questions of the steps passes 90%.

The stage and the accuracy are part of the training state, so a resumed run learns the same at the same step.
"""

MASTERED = 0.9
_KEPT = 0.95  # of the running accuracy at each step: about the last twenty steps count


def advance(stage: int, running: float, accuracy: float, stages: int) -> tuple[int, float]:
    """The stage and the running accuracy after a step; a new stage starts from nothing."""
    running = _KEPT * running + (1 - _KEPT) * accuracy
    return (stage + 1, 0.0) if running > MASTERED and stage + 1 < stages else (stage, running)
