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


def test_a_site_file_with_blanks_in_front_a_hyphen_and_a_zone_halfway() -> None:
    crontab = read("site-system.crontab", system=True)
    assert (crontab.problems, crontab.notes) == ((), ())
    warm, visits, mirror, poll, publish = crontab.lines
    assert [line.user for line in crontab.lines] == ["www", "www", "root", "www", "www"]
    assert [line.tz for line in crontab.lines] == ["UTC", "UTC", "UTC", "Asia/Tokyo", "Asia/Tokyo"]
    assert (warm.line, warm.expression) == (5, "10 7 * * *")
    assert visits.command == 'count-visits "$(date +%Y)"'
    assert (mirror.expression, mirror.command) == ("*/15 * * * *", "sync-mirror &> /dev/null")
    assert poll.command.endswith("# through the shell")
    assert publish.command == "publish   --all"


def test_environment_lines_hold_for_the_lines_below_and_later_ones_win() -> None:
    crontab = read("nas-user.crontab")
    assert crontab.problems == ()
    assert [line.environment["LIMIT"] for line in crontab.lines] == ["5", "50", "50", "50", "50", "50", "50"]
    assert crontab.lines[0].environment["SHELL"] == "/bin/bash"
    assert crontab.lines[0].environment["BASH_ENV"] == "/home/nas/.profile of cron"
    assert crontab.lines[2].stdin == "Dear all,\n\ntime for bed.\n"
    assert crontab.lines[6].expression == "@hourly"


def test_percent_signs_begin_the_input_and_can_be_escaped() -> None:
    letter, disk = read("stdin-percent.crontab").lines
    assert (letter.command, letter.stdin) == ("cat > letter.txt", "Dear team,\n\nthe month begins.\n")
    assert (disk.command, disk.stdin) == ('echo "disk at 90% on $(date +%F)"', None)


@pytest.mark.parametrize(
    ("text", "command", "stdin"),
    [
        ("cat%one%two", "cat", "one\ntwo\n"),
        ("cat%one%", "cat", "one\n"),
        ("cat%", "cat", None),
        ("cat%%", "cat", "\n"),
        (r"cat%50\% of it", "cat", "50% of it\n"),
        (r"echo 50\% of it", "echo 50% of it", None),
        (r"printf 'a\n%b'", r"printf 'a\n", "b'\n"),
        (r"echo \\%in", r"echo \\", "in\n"),
        ("echo end\\", "echo end\\", None),
    ],
)
def test_percent_signs_as_cron_reads_them(text: str, command: str, stdin: str | None) -> None:
    (line,) = parse_crontab(f"* * * * * {text}", file="f").lines
    assert (line.command, line.stdin or None) == (command, stdin)


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
    assert [problem.line for problem in problems] == [2, 3, 4, 5, 6, 8, 10]
    reasons = (
        "'61' in the minute field",
        "five time fields and a command",
        "@reboot",
        "'overlap' is no option: write name=value",
        "its comment in line 5 is bad",
        "of line 7 again",
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


def test_two_users_may_have_the_same_line() -> None:
    crontab = parse_crontab("0 3 * * * ann tidy\n0 3 * * * bob tidy", file="f", system=True)
    assert crontab.problems == ()
    assert len({line.name for line in crontab.lines}) == 2


def test_a_name_does_not_depend_on_options_or_environment() -> None:
    plain = parse_crontab("0 3 * * * tidy", file="f").lines[0]
    other = parse_crontab("COLOUR=red\n# anarchon: lease=20\n# anarchon: overlap=allow\n0 3 * * * tidy", file="f").lines[0]
    assert plain.name == other.name
    assert dict(other.options) == {"lease": "20", "overlap": "allow"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * * *", "'* * * * *' is followed by no command: write a command after the time fields"),
        ("@daily", "'@daily' is followed by no command: write a command after the time fields"),
        ("17 * * * *   ", "'17 * * * *' is followed by no command: write a command after the time fields"),
        ("@every 30s", "'@every 30s' is followed by no command: write a command after the time fields"),
        ("* * * *", "'* * * *' has too few fields: a line is five time fields and a command"),
        ("hello", "'hello' has too few fields: a line is five time fields and a command"),
        ("@reboot x", "'@reboot' names no time"),
        ("@every_minute x", "'@every_minute' is no macro; write one of @yearly"),
        ("* * * 13 * x", "'13' in the month field"),
        ("CRON_TZ=Nowhere/Land\n* * * * * x", "tz 'Nowhere/Land' is not in the pinned zone data"),
        ("X=a\0b", "the value of X holds a NUL byte: leave it out"),
        ("* * * * * a\0b", "the line holds a NUL byte, which no command can be given: leave it out"),
        (
            "* * * * * " + "x" * 200_000,
            "a line of 200010 characters is refused: write at most 100000, and the rest into a script",
        ),
        ("# anarchon: seconds=1\n* * * * * x", "seconds='1' is refused: write seconds=true for six time fields, or leave it out"),
        ("# anarchon: seconds=true\n* * * * *", "has too few fields: a line is six time fields and a command"),
        ("# anarchon: name=\n* * * * * x", "name='' is refused: write a name in printable UTF-8, or leave it out"),
        ("# anarchon: name=a\udce9\n* * * * * x", "name='a\\udce9' is refused: write a name in printable UTF-8"),
        ("# anarchon: tz=localtime\n* * * * * x", "tz 'localtime' depends on the machine"),
    ],
)
def test_a_bad_line_says_what_to_write(text: str, reason: str) -> None:
    crontab = parse_crontab(text, file="f")
    assert crontab.lines == ()
    (problem,) = crontab.problems
    assert reason in problem.reason
    assert str(problem).startswith(f"f:{text.count(chr(10)) + 1}: ")


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("overlap", "'# anarchon: overlap': 'overlap' is no option: write name=value, separated by blanks"),
        ("=1", "'=1' is no option"),
        ("name='x", "'# anarchon: name='x': no closing quotation: close the quotes"),
    ],
)
def test_a_bad_comment_keeps_its_line_from_running(comment: str, reason: str) -> None:
    crontab = parse_crontab(f"# anarchon: {comment}\nX=1\n0 1 * * * x\n0 2 * * * y", file="f")
    assert [line.command for line in crontab.lines] == ["y"]
    bad, kept = crontab.problems
    assert reason in bad.reason
    assert kept.reason == "this line does not run because its comment in line 1 is bad"


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("overlap=perhaps", "overlap='perhaps' is refused: write one of 'skip', 'allow', 'queue'"),
        ("lease=soon", "lease='soon' is refused: write seconds or a timedelta"),
        ("lease=nan", "lease=nan is refused"),
        ("max_attempts=2.5", "max_attempts='2.5' is refused: write a whole number"),
        ("leese=3", "unknown option 'leese'='3' in its comment; did you mean 'lease'?"),
        ("schedule=x", "unknown option 'schedule'='x' in its comment"),
        ("function=x", "unknown option 'function'='x' in its comment"),
        ("self=x", "unknown option 'self'='x' in its comment"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_line(option: str, reason: str) -> None:
    crontab = parse_crontab(f"# anarchon: {option}\n0 1 * * * x", file="f")
    (problem,) = add_crontab(Scheduler("memory://crontab-options"), crontab)
    assert problem.line == 2
    assert reason in problem.reason


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("MAILTO=ops@example.org\n0 1 * * * x", "f:1: MAILTO is not used: output goes to the log, failures to the history"),
        ("17 * * * * root x\n18 * * * * root y", "f:1: 'root' looks like the user of the system form: that needs --system"),
        ("0 1 * * * x\n# anarchon: name=late", "f:2: these options belong to no line: none follows"),
    ],
)
def test_what_is_only_odd_is_a_note(text: str, note: str) -> None:
    crontab = parse_crontab(text, file="f")
    assert crontab.problems == ()
    assert [str(each) for each in crontab.notes] == [note]


def test_bytes_that_are_no_utf8_are_kept() -> None:
    (line,) = parse_crontab("0 1 * * * r\udce9sum\udce9", file="f").lines
    assert line.command == "r\udce9sum\udce9"
    assert line.name.isascii()


def test_six_fields_need_the_comment() -> None:
    crontab = parse_crontab("*/10 * * * * * pulse", file="f")
    assert crontab.lines[0].command == "* pulse"
    assert issubclass(ScheduleError, ValueError)


def test_a_huge_file_is_refused_at_once() -> None:
    crontab = parse_crontab("* * * * * x\n" * 20_000, file="f")
    assert crontab.lines == ()
    assert "at most 10000" in crontab.problems[0].reason
