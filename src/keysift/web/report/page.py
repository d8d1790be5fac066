"""Report of training runs: one HTML file made from records, without scripts; it loads no model and fetches nothing."""

from keysift.records.report import Report
from keysift.web.report import model_sections, run_sections
from keysift.web.report.parts import command_block
from keysift.web.report.series import Content
from keysift.web.shared.page import page, safe, source

SECTIONS = (
    run_sections.compared,
    model_sections.retrieval,
    run_sections.curves,
    model_sections.positions,
    model_sections.texts,
    run_sections.stability,
    run_sections.scaling,
    run_sections.latency,
    model_sections.windows,
    model_sections.relevance,
    run_sections.samples,
)


def report_page(report: Report) -> str:
    """Return the report as HTML. Sections without data show the command that produces it."""
    content = Content.of(report)
    sections = [make_section(content) for make_section in SECTIONS]
    links = "".join(f"<a href='#{section.anchor}'>{safe(section.title)}</a>\n" for section in sections)
    findings = "".join(f"<li>{safe(line)}</li>\n" for line in report.summary)
    summary = f"<ul class='summary'>\n{findings}</ul>\n" if findings else ""
    parts = "".join(
        f"<section id='{section.anchor}'>\n<h2>{safe(section.title)}</h2>\n{section.body}</section>\n"
        for section in sections
    )
    notes = "".join(f"<li>{safe(note)}</li>" for note in report.notes)
    left_out = f"<h2>Left out</h2>\n<ul>{notes}</ul>\n" if notes else ""
    body = f"""<main>
<h1>{safe(report.title)}</h1>
{summary}<nav aria-label="Sections">
{links}</nav>
{parts}{left_out}<p class="hint">Made from records on {safe(report.date)} by</p>
{command_block([report.command])}</main>
"""
    return page(report.title, body, source("report/report.css"))
