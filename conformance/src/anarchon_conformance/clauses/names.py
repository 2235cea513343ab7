"""Job names that break careless backends (C7)."""

from __future__ import annotations

from itertools import pairwise

__all__ = ["hostile_names", "unprintable_names"]


TAILS = (
    "",
    "A",
    "a",
    "a ",
    " a",
    "a  ",
    "ab",
    "abc",
    "a.b",
    "a:b",
    "a/b",
    "a/../b",
    "a\\b",
    "a-b",
    "a_b",
    "a%b",
    "axb",
    "a*",
    "a>",
    "a?",
    "a#b",
    "a{b}",
    "{a}b",
    "a[b]",
    "a'b",
    "a''b",
    'a"b',
    "a`b",
    "a;b",
    "a$b",
    "a$1",
    "a,b",
    "a=b",
    "a|b",
    "a&b",
    "a\u00e9",  # one code point
    "ae\u0301",  # the same letter in two
    "a\u00df",
    "ass",
    "a\u4e16\u754c",
    "a\U0001f642",
    "'; DROP TABLE runs; --",
    "*",
    ">",
    "%",
    "n",
    "m1",
    ".history",
    ":runs",
    "0",
    "00",
    "1e3",
    "None",
    "null",
)


def hostile_names(mark: str) -> list[str]:
    """Return printable names that start with `mark`: quotes, wildcards, separators, look-alikes, neighbours, 200 characters."""
    names = [mark + tail for tail in TAILS]
    names.append(mark + "x" * (200 - len(mark)))
    names.append(mark + "x" * (199 - len(mark)) + "y")  # differs from its neighbour in the last character only
    names.append(mark + "\u00e9" * (200 - len(mark)))  # more than 200 bytes
    assert all(one != two for one, two in pairwise(sorted(names))), "the names differ"
    return names


def unprintable_names(mark: str) -> list[str]:
    """Return names that must be refused before they reach a store."""
    return [
        "",
        mark + "\x00",
        mark + "a\x00b",
        mark + "\n",
        mark + "\r",
        mark + "\t",
        mark + "\x01",
        mark + "\x1b[31m",
        mark + "\x7f",
        mark + "\u200b",  # zero width
        mark + "\u202e",  # right-to-left override
        mark + "\ud800",  # half of a surrogate pair
        mark + "x" * 200,
    ]
