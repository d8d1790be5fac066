"""What the demo's training showed, as plain data: the page and the terminal are made from this."""

from keysift.core.config import config


@config
class DemoTraining:
    parameters: int
    seconds: float
    context: int
    losses: tuple[float, ...]
    windows: tuple[tuple[float, ...], ...]
    """Of each tile, layer by layer."""
    before: str
    after: str
