"""A report of runs as one HTML file that opens from disk: records in, nothing fetched, no script, no model loaded."""

from keysift.web import report_models, report_runs
from keysift.web.page import page, safe, source
from keysift.web.report_parts import made
from keysift.web.report_record import Report

SECTIONS = (
    report_runs.compared,
    report_models.retrieval,
    report_runs.curves,
    report_models.positions,
    report_models.texts,
    report_runs.stability,
    report_runs.scaling,
    report_runs.latency,
    report_models.windows,
    report_models.relevance,
    report_runs.samples,
)


def report_page(report: Report) -> str:
    sections = [section(report) for section in SECTIONS]
    links = "".join(f"<a href='#{one.anchor}'>{safe(one.title)}</a>\n" for one in sections)
    said = "".join(f"<li>{safe(line)}</li>\n" for line in report.summary)
    summary = f"<ul class='summary'>\n{said}</ul>\n" if said else ""
    notes = "".join(f"<li>{safe(note)}</li>" for note in report.notes)
    parts = "".join(
        f"<section id='{one.anchor}'>\n<h2>{safe(one.title)}</h2>\n{one.body}</section>\n" for one in sections
    )
    left_out = f"<h2>Left out</h2>\n<ul>{notes}</ul>\n" if notes else ""
    body = f"""<main>
<h1>{safe(report.title)}</h1>
{summary}<p class="hint">Made {safe(report.date)} from records by</p>
{made([report.command])}
<nav aria-label="Sections">
{links}</nav>
{parts}{left_out}</main>
"""
    return page(report.title, body, source("report.css"))
