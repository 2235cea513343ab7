"""From the text of a crontab to plain data; a bad line becomes a problem and the others stay."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from anarchon.errors import ScheduleError
from anarchon.schedule import Schedule, parse, text_of

__all__ = ["Crontab", "CrontabLine", "Problem", "parse_crontab"]

LINES_MAX = 10_000
LINE_MAX_CHARS = 100_000
NAME_DIGITS = 8
_ENVIRONMENT = re.compile(r"""^\s*(?P<quote>["']?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)\s*=\s*(?P<value>.*?)\s*$""")
_OPTIONS = re.compile(r"^\s*#\s*anarchon:\s*(?P<options>.*)$")
_COMMAND = re.compile(r"(?:[^\\%]|\\.)*\\?", re.DOTALL)
"""The command: up to the first percent sign; a backslash escapes what follows it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that is not run, and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CrontabLine:
    """One job of a crontab. `stdin` is what follows the first unescaped `%`; `options` are those of its comment."""

    file: str
    line: int
    name: str
    expression: str
    tz: str
    schedule: Schedule
    command: str
    stdin: str | None = None
    user: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Crontab:
    """The jobs of a file, the lines that are refused, and remarks (MAILTO and the like)."""

    lines: tuple[CrontabLine, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Reader:
    file: str
    system: bool
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    options_line: int = 0
    options_bad: bool = False
    lines: list[CrontabLine] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)

    def read(self, number: int, text: str) -> None:
        """Take one line."""
        stripped = text.strip()
        comment = _OPTIONS.match(text)
        try:
            if comment:
                self._comment(number, comment["options"])
            elif not stripped or stripped.startswith("#"):
                return
            elif (setting := _ENVIRONMENT.match(text)) is not None:
                self._set(number, setting["name"], setting["value"])
            else:
                self._add(self._job(number, stripped))
        except ValueError as error:  # a ScheduleError is one too
            self.problems.append(Problem(self.file, number, str(error)))

    def end(self) -> None:
        """Say what is left over."""
        if self.options:
            self.notes.append(Problem(self.file, self.options_line, "these options belong to no line: none follows"))

    def _comment(self, number: int, text: str) -> None:
        """Keep the options of a comment for the next job; several comments above it add up."""
        self.options_line = number
        try:
            self.options |= _read_options(text)
        except ValueError:
            self.options_bad = True
            raise

    def _options_of_line(self) -> dict[str, str]:
        """Take what the comments above said; a job whose comment cannot be read would run otherwise than was meant."""
        options, bad = self.options, self.options_bad
        self.options, self.options_bad = {}, False
        if bad:
            msg = f"this line does not run because its comment in line {self.options_line} is bad"
            raise ValueError(msg)
        return options

    def _set(self, number: int, name: str, value: str) -> None:
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if name == "MAILTO" and value:
            self.notes.append(Problem(self.file, number, "MAILTO is not used: output goes to the log, failures to the history"))
        if "\0" in value:
            msg = f"the value of {name} holds a NUL byte: leave it out"
            raise ValueError(msg)
        self.environment[name] = value

    def _job(self, number: int, text: str) -> CrontabLine:
        options = self._options_of_line()
        _refuse_unreadable(text)
        expression, rest = _split(text, seconds=_seconds(options.pop("seconds", "false")))
        user = None
        if self.system:
            user, rest = (*rest.split(None, 1), "", "")[:2]
        elif rest.split(None, 1)[:1] == ["root"] and not any("--system" in note.reason for note in self.notes):
            self.notes.append(Problem(self.file, number, "'root' looks like the user of the system form: that needs --system"))
        command, stdin = _percent(rest)
        if not command.strip():
            what = "a user and a command" if self.system else "a command"
            msg = f"{expression!r} is followed by no command: write {what} after the time fields"
            raise ValueError(msg)
        tz = options.pop("tz", None) or self.environment.get("CRON_TZ") or self.environment.get("TZ") or "UTC"
        name = _given_name(options) or _name_of(text_of(parse(expression, tz, "crontab")), tz, rest, user)
        schedule = parse(expression, tz, name)
        environment = {key: value for key, value in self.environment.items() if key != "MAILTO"}
        return CrontabLine(self.file, number, name, expression, tz, schedule, command.strip(), stdin, user, environment, options)

    def _add(self, line: CrontabLine) -> None:
        first = self.names.setdefault(line.name, line.line)
        if first != line.line:
            msg = f"this is the job {line.name!r} of line {first} again: give it a name, '# anarchon: name=…' above it"
            raise ValueError(msg)
        self.lines.append(line)


def parse_crontab(text: str, *, file: str, system: bool = False) -> Crontab:
    """Read a crontab; `system` is the form of /etc/crontab, with a user before the command.

    A line is named by its comment `# anarchon: name=…` or by a hash of its schedule and command, so that moving it in the
    file changes nothing. Environment lines hold for the lines below; `CRON_TZ` or `TZ` is the zone of the schedules, UTC
    if there is none.
    """
    reader = _Reader(file, system)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if len(lines) > LINES_MAX:
        problem = Problem(file, LINES_MAX, f"a crontab of {len(lines)} lines is refused: at most {LINES_MAX}")
        return Crontab((), (problem,))
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    reader.end()
    return Crontab(tuple(reader.lines), tuple(reader.problems), tuple(reader.notes))


def _read_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        msg = f"'# anarchon: {text}': {str(error).lower()}: close the quotes"
        raise ValueError(msg) from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            msg = f"'# anarchon: {text}': {word!r} is no option: write name=value, separated by blanks"
            raise ValueError(msg)
        options[name] = value
    return options


def _refuse_unreadable(text: str) -> None:
    if "\0" in text:
        msg = "the line holds a NUL byte, which no command can be given: leave it out"
        raise ValueError(msg)
    if len(text) > LINE_MAX_CHARS:
        msg = f"a line of {len(text)} characters is refused: write at most {LINE_MAX_CHARS}, and the rest into a script"
        raise ValueError(msg)


def _seconds(text: str) -> bool:
    if text not in {"true", "false"}:
        msg = f"seconds={text!r:.40} is refused: write seconds=true for six time fields, or leave it out"
        raise ValueError(msg)
    return text == "true"


def _given_name(options: dict[str, str]) -> str | None:
    name = options.pop("name", None)
    if name is not None and (not name or not name.isprintable()):
        msg = f"name={name!r:.40} is refused: write a name in printable UTF-8, or leave it out"
        raise ValueError(msg)
    return name


def _split(text: str, *, seconds: bool) -> tuple[str, str]:
    """Return the time fields and the rest of a line."""
    text = text.removeprefix("-")  # some crons take this as "do not log"
    words = text.split(None, 2)
    if words[0] == "@every":
        return " ".join(words[:2]), words[2] if len(words) > 2 else ""
    if text.startswith("@"):
        return words[0], text[len(words[0]) :].strip()
    count = 6 if seconds else 5
    words = text.split(None, count)
    if len(words) < count:
        msg = f"{text!r:.80} has too few fields: a line is {'six' if seconds else 'five'} time fields and a command"
        raise ScheduleError(msg)
    return " ".join(words[:count]), words[count] if len(words) > count else ""


def _percent(text: str) -> tuple[str, str | None]:
    """Split at the first unescaped percent sign; further ones are line ends, `\\%` is a percent sign."""
    found = _COMMAND.match(text)
    end = found.end() if found else 0
    command, rest = text[:end].replace("\\%", "%"), text[end:]
    if not rest:
        return command, None
    stdin = re.sub(r"(?<!\\)%", "\n", rest[1:]).replace("\\%", "%")
    return command, stdin if stdin.endswith("\n") or not stdin else stdin + "\n"


def _name_of(schedule: str, tz: str, command: str, user: str | None) -> str:
    parts = (schedule, tz, command) if user is None else (schedule, tz, command, user)
    digest = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:NAME_DIGITS]
    words = command.split(None, 1)
    program = re.sub(r"[^A-Za-z0-9_-]+", "-", words[0].rpartition("/")[2] if words else "line")
    return f"{program.strip('-')[:40] or 'line'}-{digest}"
