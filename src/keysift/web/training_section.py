"""The demo's training as a part of its page."""

from html import escape

from keysift.train.record import DemoTraining
from keysift.web.curves import every_step, loss_chart, window_chart


def training_section(training: DemoTraining) -> str:
    return f"""<h2>A Multiscreen of {training.parameters:,} parameters, {training.seconds:.0f} seconds old</h2>
<p>Trained on the text of Python's standard library, byte by byte, in {len(training.losses)} steps on this machine.</p>
<h3>Training loss</h3>
{loss_chart({"training": every_step(training.losses)}, "loss, nats a byte")}
<h3>How far each tile looks back</h3>
<p>Every tile has learned its own window, in tokens.</p>
{window_chart(training.windows, training.context)}
<h3>Before and after</h3>
<div class="scroll"><table><thead><tr><th scope="col">untrained</th><th scope="col">trained</th></tr></thead>
<tbody><tr><td><pre>{_text(training.before)}</pre></td><td><pre>{_text(training.after)}</pre></td></tr></tbody></table></div>
"""


def _text(sample: str) -> str:
    """A young model writes any byte; those no page can show become a mark."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample))
