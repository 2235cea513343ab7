"""Backend URLs: typed options, unknown ones refused, passwords shown nowhere."""

from __future__ import annotations

import pytest
from anarchon.errors import UrlError
from anarchon.url import BackendUrl, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:s3cret@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("postgresql://user:s3#cret@host/app", "postgresql://user:***@host/app"),
        ("postgresql://user:s3/cret@host/app", "postgresql://user:***@host/app"),
        ("postgresql://user:s3?cret@host/app", "postgresql://user:***@host/app"),
        ("postgresql://user:s3@cret@host/app", "postgresql://user:***@host/app"),
        ("redis://host:6379/0?x=a@b", "redis://host:6379/0?x=a@b"),
        ("amqp://host/?password=s3cret&x=1", "amqp://host/?password=***&x=1"),
        ("sqlite:////srv/a@b.db", "sqlite:////srv/a@b.db"),
        ("failed to reach nats://me:s3cret@one:4222, gave up", "failed to reach nats://me:***@one:4222, gave up"),
    ],
)
def test_a_password_is_never_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("password", ["pa#ss", "pa/ss", "pa?ss", "1:2", "é%"])
def test_a_url_that_cannot_be_read_does_not_tell_its_password(password: str) -> None:
    try:
        url = BackendUrl(f"postgresql://user:{password}@host:port/app")
    except UrlError as error:
        told = str(error)
        assert "%23" in told
    else:
        told = str(url)
    assert password not in told


def test_options_are_typed_and_unknown_ones_named() -> None:
    url = BackendUrl("acme://host?wait=1.5&deep=yes&size=3&kind=a")
    assert url.seconds_ms("wait", 0) == 1_500
    assert url.flag("deep", default=False) is True
    assert url.integer("size", 1, least=1, most=5) == 3
    with pytest.raises(UrlError, match="unknown option 'kind'"):
        url.done()
    with pytest.raises(UrlError, match="write one of b, c"):
        url.text("kind", "b", choices=("b", "c"))


def test_several_hosts_are_left_to_the_backend() -> None:
    url = BackendUrl("acme://me:s3cret@one:1,[::1]:2?x=1")
    assert (url.port, url.netloc, str(url)) == (None, "me:s3cret@one:1,[::1]:2", "acme://me:***@one:1,[::1]:2?x=1")
    assert BackendUrl("acme://me:a,b@one:1").port == 1
