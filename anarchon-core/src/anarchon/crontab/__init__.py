"""Real crontabs on a fleet: each line is a job, each slot runs on one host."""

from anarchon.crontab.command import CommandFailed, command_handler
from anarchon.crontab.jobs import add_crontab
from anarchon.crontab.parser import Crontab, CrontabLine, Problem, parse_crontab

__all__ = ["CommandFailed", "Crontab", "CrontabLine", "Problem", "add_crontab", "command_handler", "parse_crontab"]
