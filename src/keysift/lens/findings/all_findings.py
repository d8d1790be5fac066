"""All findings of a record, in the order of their importance. `Record.story` picks the first ones."""

from keysift.lens.findings.absolute import absolute_findings
from keysift.lens.findings.experiments import experiment_findings
from keysift.lens.findings.heads import head_findings
from keysift.lens.findings.length import length_findings
from keysift.lens.findings.relevance import relevance_findings
from keysift.records.lens import Finding, Record


def findings(record: Record) -> tuple[Finding, ...]:
    """The findings of a record, the most important first."""
    parts = (head_findings, absolute_findings, relevance_findings, length_findings, experiment_findings)
    listed = [finding for part in parts for finding in part(record)]
    return tuple(sorted(listed, key=lambda finding: -finding.weight))
