"""Every backend of ours passes the kit, and the page of guarantees says what the kit said."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from anarchon_conformance import Profile, Report
from anarchon_conformance.render import failure_text, json_of, text_of
from guarantees import table_rows
from stores.fleet import Fleet
from stores.server import Server
from targets import TARGETS, Ours


@pytest.fixture(scope="module", params=TARGETS, ids=lambda ours: ours.name.replace(" ", "-"))
def reported(
    request: pytest.FixtureRequest,
    fleet: Fleet,
    need_store: Callable[[type[Server]], None],
    profile: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Ours, Report]:
    """One target and what the kit says of it."""
    ours: Ours = request.param
    for kind in ours.needs:
        need_store(kind)
    report = ours.report(fleet, tmp_path_factory.mktemp("kit"), Profile(profile))
    print(text_of(report))
    return ours, report


@pytest.mark.timeout(1800)
def test_the_kit_passes(reported: tuple[Ours, Report]) -> None:
    _, report = reported
    assert report.passed, "\n".join([text_of(report), *(failure_text(each, report.target) for each in report.failures)])


def test_no_tier_is_vacuous(reported: tuple[Ours, Report]) -> None:
    _, report = reported
    assert all(not result.vacuous for result in report.tiers)


def test_the_page_of_guarantees_says_the_same(reported: tuple[Ours, Report]) -> None:
    ours, report = reported
    page = table_rows()
    told = {row["clause"]: row["verdict"] for row in json.loads(json_of(report))["clauses"]}
    assert {clause: cells[ours.name] for clause, cells in page.items()} == told, "python tests/guarantees.py writes it anew"
