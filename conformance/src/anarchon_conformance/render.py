"""Print a report: as text for people, as Markdown for documentation, as JSON for tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from anarchon.contract import clause

from anarchon_conformance.report import ClauseResult, Failure, Mark, Tier, TierResult, Verdict
from anarchon_conformance.session import Report

__all__ = ["failure_text", "json_of", "markdown_of", "text_of"]


def text_of(report: Report) -> str:
    """Return the report for a terminal: every clause, the marks, the failures as stories, one last line."""
    kind = "lease backend" if report.lease else "claim-only backend"
    lines = [
        f"{report.target}   {kind}, contract {report.contract}, profile {report.options.profile}, seed {report.options.seed}"
    ]
    lines += [_row(row) for row in report.rows]
    lines.append("")
    lines += [line for result in report.tiers for line in _tier(result)]
    for failure in report.failures:
        lines += ["", *failure_text(failure, report.target).splitlines()]
    lines += ["", _last(report)]
    return "\n".join(lines) + "\n"


def _counts(row: ClauseResult) -> str:
    return ", ".join(f"{tier} {row.counts[tier]}" for tier in Tier if row.counts.get(tier))


def _row(row: ClauseResult) -> str:
    said = _counts(row)
    if row.verdict is not Verdict.PASS and row.detail:
        said = f"{row.detail}" + (f" ({said})" if said else "")
    elif row.detail:
        said += f"   [{row.detail}]"
    return f"  {row.clause:<4} {row.title:<24} {row.verdict:<12} {said}".rstrip()


def _tier(result: TierResult) -> list[str]:
    marks = ", ".join(f"{mark} {result.marks[mark]}" for mark in Mark if result.marks.get(mark))
    lines = [f"  {result.tier:<8} {result.elapsed_ms / 1000:6.1f} s   {'; '.join(result.notes)}".rstrip()]
    if marks:
        lines.append(f"           marks: {marks}")
    if result.vacuous:
        missing = ", ".join(result.vacuous)
        lines.append(f"           VACUOUS: never seen: {missing}; a green run of this tier would say nothing")
    return lines


def failure_text(failure: Failure, target: str) -> str:
    """Return a failure as clause, story and replay."""
    undecided = bool(failure.story) and failure.story[-1].strip().startswith("undecided")
    verdict = Verdict.UNDECIDED.upper() if undecided else Verdict.VIOLATED
    head = f"{failure.clause} {clause(failure.clause).title}: {verdict}   ({failure.where})"
    lines = [head, *failure.story]
    if failure.replay is not None:
        lines.append(f"   replay: anarchon-conformance {target} --replay '{failure.replay}'")
    return "\n".join(lines)


def _last(report: Report) -> str:
    found = {verdict: sum(1 for row in report.rows if row.verdict is verdict) for verdict in Verdict}
    said = ", ".join(f"{number} {verdict}" for verdict, number in found.items() if number)
    return f"{'passed' if report.passed else 'FAILED'}: {len(report.rows)} clauses, {said}"


def markdown_of(report: Report) -> str:
    """Return the report as a Markdown table with the failures below."""
    kind, verdict = ("Lease" if report.lease else "Claim-only"), ("passed" if report.passed else "FAILED")
    options = report.options
    lines = [
        f"# {report.target}",
        "",
        f"{kind} backend, contract {report.contract}, profile {options.profile}, seed {options.seed}: **{verdict}**",
        "",
        "| clause | | verdict | " + " | ".join(Tier) + " | |",
        "|---|---|---|" + "---:|" * len(Tier) + "---|",
    ]
    for row in report.rows:
        cells = [str(row.counts.get(tier, "")) for tier in Tier]
        detail = row.detail.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {row.clause} | {row.title} | {row.verdict} | " + " | ".join(cells) + f" | {detail} |")
    lines += ["", "| tier | seconds | marks | notes |", "|---|---:|---|---|"]
    for result in report.tiers:
        marks = ", ".join(f"{mark} {result.marks[mark]}" for mark in Mark if result.marks.get(mark))
        missing = f" **vacuous: {', '.join(result.vacuous)}**" if result.vacuous else ""
        lines.append(f"| {result.tier} | {result.elapsed_ms / 1000:.1f} | {marks}{missing} | {'; '.join(result.notes)} |")
    for failure in report.failures:
        lines += ["", "```", failure_text(failure, report.target), "```"]
    return "\n".join(lines) + "\n"


def json_of(report: Report) -> str:
    """Return the report as JSON; the documentation's tables are made from it."""
    return json.dumps(_plain(report), indent=2) + "\n"


def _plain(report: Report) -> dict[str, Any]:
    return {
        "target": report.target,
        "kind": "lease" if report.lease else "claim-only",
        "contract": report.contract,
        "profile": report.options.profile,
        "seed": report.options.seed,
        "passed": report.passed,
        "limits": asdict(report.limits),
        "clauses": [
            {
                "clause": row.clause,
                "title": row.title,
                "verdict": row.verdict,
                "counts": {tier: row.counts[tier] for tier in Tier if row.counts.get(tier)},
                "detail": row.detail,
            }
            for row in report.rows
        ],
        "tiers": [
            {
                "tier": result.tier,
                "seconds": round(result.elapsed_ms / 1000, 3),
                "marks": {mark: result.marks[mark] for mark in Mark if result.marks.get(mark)},
                "vacuous": list(result.vacuous),
                "notes": list(result.notes),
            }
            for result in report.tiers
        ],
        "failures": [
            {"clause": item.clause, "where": item.where, "story": list(item.story), "replay": item.replay}
            for item in report.failures
        ],
    }
