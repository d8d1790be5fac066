"""Files that a published project has: each valid against its schema, and the version is the same everywhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import keysift

ROOT = Path(__file__).parent.parent.parent
GITHUB = ROOT / ".github"
SCHEMAS = {
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")),
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
}


def validate(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_valid(schema: str, tmp_path: Path) -> None:
    process = validate(schema, *SCHEMAS[schema])
    assert process.returncode == 0, process.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("no-such-key: 1\n")
    assert validate(schema, wrong).returncode == 1


def test_workflows_say_that_they_were_never_run() -> None:
    for file in SCHEMAS["vendor.github-workflows"]:
        assert "never run by the authors" in file.read_text(), file.name


def test_the_version_has_a_changelog_entry_and_is_the_cited_one() -> None:
    heading, date = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert heading == keysift.__version__
    assert f"\nversion: {heading}\n" in citation
    assert f"\ndate-released: {date}\n" in citation


def test_commits_are_checked_with_the_targets_of_contributing() -> None:
    entries = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert entries == ["make lint", "make check"]
