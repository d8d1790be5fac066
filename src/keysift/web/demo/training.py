"""Training section of the demo page."""

from collections.abc import Sequence
from html import escape

from keysift.records.runs import RunSummary
from keysift.web.shared.training_charts import loss_chart, loss_points, window_chart


def training_section(run: RunSummary, windows: Sequence[Sequence[float]], before: str, after: str) -> str:
    """Return the section as HTML: loss, learned windows by layer, and a sample before and after training."""
    seconds = 60 * float(run.settings.get("minutes") or 0)
    return f"""<h2>Multiscreen with {run.parameters:,} parameters, trained for {seconds:.0f} seconds</h2>
<p>Trained byte by byte on the text of Python's standard library, {len(run.losses)} steps on this machine.</p>
<h3>Training loss</h3>
{loss_chart({"training": loss_points(run.losses)}, "loss, nats per byte")}
<h3>Learned windows</h3>
<p>Every tile learns its own window, in tokens.</p>
{window_chart(windows, int(run.settings["context"]))}
<h3>Samples before and after training</h3>
<div class="scroll"><table><thead><tr><th scope="col">untrained</th><th scope="col">trained</th></tr></thead>
<tbody><tr><td><pre>{_printable(before)}</pre></td>
<td><pre>{_printable(after)}</pre></td></tr></tbody></table></div>
"""


def _printable(sample: str) -> str:
    """Escape a sample; an undertrained model may write any byte, so unprintable ones become U+FFFD."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample))
