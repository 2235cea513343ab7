"""The pages of the documentation as fixtures."""

from __future__ import annotations

import pytest
from documents import Page, read_page, read_pages


@pytest.fixture(scope="session")
def pages() -> tuple[Page, ...]:
    """Every Markdown page of the repository."""
    return read_pages()


@pytest.fixture(scope="session")
def readme() -> Page:
    """The front page."""
    return read_page("README.md")


@pytest.fixture(scope="session")
def plugins_page() -> Page:
    """The page about hooks."""
    return read_page("anarchon-core/docs/plugins.md")
