"""Findings: statements about a record, each with its heads, tokens or next step. No torch.

`findings` returns all of them; `Record.story` picks the most important ones by their weight.
"""

from keysift.lens.findings.absolute import absolute_findings
from keysift.lens.findings.experiments import experiment_findings
from keysift.lens.findings.heads import head_findings
from keysift.lens.findings.length import length_findings
from keysift.lens.findings.numbers import mean as mean
from keysift.lens.findings.relevance import relevance_findings
from keysift.records.lens import Finding, Record


def findings(record: Record) -> tuple[Finding, ...]:
    """The findings of a record, the most important first."""
    parts = (head_findings, absolute_findings, relevance_findings, length_findings, experiment_findings)
    listed = [finding for part in parts for finding in part(record)]
    return tuple(sorted(listed, key=lambda finding: -finding.weight))
