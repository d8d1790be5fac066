"""The demo's training as a part of its page."""

from html import escape

from keysift.train.record import DemoTraining
from keysift.web.curves import curves, windows


def story_section(story: DemoTraining) -> str:
    return f"""<h1>A Multiscreen of {story.parameters:,} parameters, {story.seconds:.0f} seconds old</h1>
<p>Trained on the text of Python's standard library, byte by byte, in {len(story.losses)} steps on this machine.</p>
<h2>Loss, in nats a byte</h2>
{curves({"training": story.losses})}
<h2>How far each tile looks back</h2>
<p>Every tile has learned its own window, in tokens.</p>
{windows(story.windows, story.context)}
<h2>Before and after</h2>
<div class="scroll"><table><thead><tr><th scope="col">untrained</th><th scope="col">trained</th></tr></thead>
<tbody><tr><td><pre>{_text(story.before)}</pre></td><td><pre>{_text(story.after)}</pre></td></tr></tbody></table></div>
"""


def _text(sample: str) -> str:
    """A young model writes any byte; those no page can show become a mark."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample))
