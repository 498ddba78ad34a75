"""Findings of a review: as text, as JSON, for GitHub and as SARIF; and the page of a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import normpath
from pathlib import Path
from urllib.parse import quote

from trainworks.report.rendering.document import Document, Section, Style, Styled, Text
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.review.finding import Finding, ReviewReport, Severity
from trainworks.review.rule import ReviewRule

_STYLES: dict[Severity, Style] = {"error": "bad", "warning": "warning", "note": "dim"}
_GITHUB: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}
_BASE = "%SRCROOT%"
"""Name of the folder that addresses of files are relative to."""
_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


@build_document.register
def document(report: ReviewReport) -> Document:
    """Every finding, the first of each rule with reason and correction, and a summary."""
    explained: set[str] = set()
    blocks: list[Text] = []
    for finding in report.findings:
        blocks += _finding(finding, explain=finding.rule not in explained)
        explained.add(finding.rule)
    summary = [Text(_summary(report))] if report.findings or report.fixed else []  # else the verdict says it
    sections = [Section("", blocks), Section("", summary)]
    return Document("Review", "review", sections, verdict=report.verdict)


@to_json.register
def _(report: ReviewReport) -> Mapping[str, object]:
    return {"findings": [finding.to_json() for finding in report.findings]}


def github_annotations(findings: Sequence[Finding], folder: Path) -> str:
    """A workflow command for each finding, which GitHub shows beside the line; paths are relative to a folder."""
    lines = []
    for each in findings:
        file = _escaped(_relative(each.file, folder) or each.file).replace(":", "%3A").replace(",", "%2C")
        place = f"file={file},line={each.line},col={each.column},title={each.rule}"
        lines.append(f"::{_GITHUB[each.severity]} {place}::{_escaped(f'{each.message}. {each.fix}')}")
    return "\n".join(lines)


def sarif(findings: Sequence[Finding], rules: Sequence[ReviewRule], folder: Path) -> Mapping[str, object]:
    """A log in SARIF 2.1.0, which code scanning reads.

    Addresses of files are relative to the absolute folder; a file outside has an absolute one.
    """
    described = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": f"{rule.fix} Source: {rule.source}"},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in rules
    ]
    run = {
        "tool": {"driver": {"name": "trainworks review", "rules": described}},
        "originalUriBaseIds": {_BASE: {"uri": f"{folder.as_uri().rstrip('/')}/"}},
        "results": [_sarif_result(finding, folder) for finding in findings],
    }
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def rules_document(rules: Sequence[ReviewRule]) -> Document:
    """The pages of rules; of several, their titles alone."""
    if len(rules) > 1:
        return Document("Rules", "review", [Section("", [Text(f"{rule.id}  {rule.title}") for rule in rules])])
    (rule,) = rules
    examples = [Text("finds:"), *_lines(rule.bad), Text("correct:"), *_lines(rule.good)]
    texts = [
        Text(f"{rule.id}: {rule.title}", "bold"),
        Text(rule.why),
        Text(f"fix: {rule.fix}"),
        Text(f"source: {rule.source}"),
    ]
    if rule.holds_for:
        texts.append(Text(f"holds for: {rule.holds_for}"))
    return Document(f"{rule.id}: {rule.title}", "review", [Section("", texts), Section("", examples)])


def _finding(finding: Finding, *, explain: bool) -> list[Text]:
    style = _STYLES[finding.severity]
    head = [Styled(f"{finding.place}: ", "bold"), Styled(f"{finding.rule} {finding.severity}", style)]
    line = Text([*head, Styled(f": {finding.message}")])
    reasons = [Text(f"why: {finding.why}", indent=4), Text(f"fix: {finding.fix}", indent=4)]
    return [line, *reasons] if explain else [line]


def _summary(report: ReviewReport) -> str:
    found, files = len(report.findings), report.files
    corrected = f"corrected {report.fixed}; " if report.fixed else ""
    fixable = sum(bool(finding.edits) for finding in report.findings)
    hint = f" ({fixable} can be corrected with `--fix`)" if fixable else ""
    count = f"{found} finding{'s' * (found != 1)}" if found else "nothing found"
    return f"{corrected}{count} in {files} file{'s' * (files != 1)}{hint}"


def _lines(text: str) -> list[Text]:
    return [Text(line, indent=4) for line in text.rstrip("\n").split("\n")]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _relative(file: str, folder: Path) -> str | None:
    """Path of a file from an absolute folder, with slashes; None for a file outside of it."""
    path = Path(normpath(folder / file))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else None


def _sarif_address(file: str, folder: Path) -> dict[str, str]:
    """Address of a file: relative to the base where it can be, so that code scanning finds it in a repository."""
    relative = _relative(file, folder)
    if relative is None:
        return {"uri": Path(normpath(folder / file)).as_uri()}
    return {"uri": quote(relative), "uriBaseId": _BASE}


def _sarif_result(finding: Finding, folder: Path) -> Mapping[str, object]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    location = {"physicalLocation": {"artifactLocation": _sarif_address(finding.file, folder), "region": region}}
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. {finding.fix}"},
        "locations": [location],
    }
