"""Crontabs of several styles become jobs; a bad line is named and the others stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from anarchon import Scheduler
from anarchon.crontab import Crontab, add_crontab, parse_crontab
from anarchon.errors import ScheduleError

FILES = Path(__file__).parent / "files"


def read(name: str, *, system: bool = False) -> Crontab:
    return parse_crontab((FILES / name).read_bytes().decode(), file=name, system=system)


def test_a_user_crontab_with_environment_names_ranges_and_macros() -> None:
    crontab = read("backup-user.crontab")
    assert crontab.problems == ()
    assert [line.expression for line in crontab.lines] == [
        "15 2 * * *",
        "30 3 * * sun",
        "0 */4 1-15 jan,apr,jul,oct mon-fri",
        "@daily",
    ]
    first = crontab.lines[0]
    assert first.tz == "Europe/Berlin"
    assert first.command == '"$DEPOT"/bin/snapshot --keep 14 >/dev/null 2>&1'
    assert dict(first.environment) == {"SHELL": "/bin/bash", "CRON_TZ": "Europe/Berlin", "DEPOT": "/srv/depot"}
    assert "MAILTO is not used" in str(crontab.notes[0])


def test_the_system_form_has_a_user_column() -> None:
    crontab = read("host-system.crontab", system=True)
    assert crontab.problems == ()
    assert {line.user for line in crontab.lines} == {"root"}
    assert crontab.lines[2].command == "test -x /usr/sbin/later || ( cd / && run-weekly )"
    assert crontab.lines[0].command == "cd / && run-hourly"


def test_carriage_returns_tabs_and_trailing_blanks_do_not_matter() -> None:
    crontab = read("desk-crlf.crontab")
    assert crontab.problems == ()
    assert [(line.expression, line.command) for line in crontab.lines] == [
        ("0 9 * * MON-FRI", 'printf "good morning"'),
        ("*/20 * * * *", "probe --once"),
    ]
    assert {line.tz for line in crontab.lines} == {"America/New_York"}


def test_percent_signs_begin_the_input_and_can_be_escaped() -> None:
    letter, disk = read("stdin-percent.crontab").lines
    assert (letter.command, letter.stdin) == ("cat > letter.txt", "Dear team,\n\nthe month begins.\n\n")
    assert (disk.command, disk.stdin) == ('echo "disk at 90% on $(date +%F)"', None)


def test_comments_set_options_names_and_six_fields() -> None:
    crontab = read("fleet-options.crontab")
    assert crontab.problems == ()
    scheduler = Scheduler("memory://crontab-options")
    assert add_crontab(scheduler, crontab) == []
    rates, closing, pulse = (scheduler.jobs[name] for name in ("rates", "closing", "pulse"))
    assert (rates.overlap, rates.lease_ms, rates.max_late_ms) == ("allow", 20_000, 300_000)
    assert (closing.catch_up, closing.timeout_ms) == ("latest", 3_600_000)
    assert pulse.jitter_ms == 0
    assert len(scheduler.jobs) == 4


def test_bad_lines_are_named_with_file_line_and_reason_and_the_others_stay() -> None:
    crontab = read("broken.crontab")
    scheduler = Scheduler("memory://crontab-broken")
    problems = sorted([*crontab.problems, *add_crontab(scheduler, crontab)], key=lambda each: each.line)
    assert [problem.line for problem in problems] == [2, 3, 4, 5, 7, 9]
    reasons = (
        "'61' in the minute field",
        "five time fields and a command",
        "@reboot",
        "is no option",
        "of line 6 again",
        "overlap='perhaps'",
    )
    for problem, part in zip(problems, reasons, strict=True):
        assert str(problem).startswith(f"broken.crontab:{problem.line}: ")
        assert part in problem.reason
    assert len(scheduler.jobs) == 2


def test_a_line_keeps_its_name_when_it_moves_and_gets_another_when_it_changes() -> None:
    def name(text: str) -> str:
        (line,) = parse_crontab(text, file="f").lines
        return line.name

    assert name("0 3 * * * /usr/bin/tidy --all") == name("# moved\n\n0   3 * * *   /usr/bin/tidy --all")
    assert name("0 3 * * * /usr/bin/tidy --all").startswith("tidy-")
    assert name("0 4 * * * /usr/bin/tidy --all") != name("0 3 * * * /usr/bin/tidy --all")


@pytest.mark.parametrize("text", ["* * * * *", "@daily", "17 * * * *   "])
def test_a_line_without_a_command_says_so(text: str) -> None:
    (problem,) = parse_crontab(text, file="f").problems
    assert "no command" in problem.reason


def test_six_fields_need_the_comment() -> None:
    crontab = parse_crontab("*/10 * * * * * pulse", file="f")
    assert crontab.lines[0].command == "* pulse"
    assert issubclass(ScheduleError, ValueError)


def test_a_huge_file_is_refused_at_once() -> None:
    crontab = parse_crontab("* * * * * x\n" * 20_000, file="f")
    assert crontab.lines == ()
    assert "at most 10000" in crontab.problems[0].reason
