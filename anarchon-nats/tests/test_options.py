"""Options: what may be written, what is refused, what is never shown, and that the documentation says the same."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anarchon.backend import Backend, LeaseBackend
from anarchon.errors import BackendUnavailable, OptionError, StoreSetupError, UrlError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.url import BackendUrl
from anarchon_nats import NatsCasBackend, NatsLeaseBackend, NatsMsgIdBackend, from_url, plugin
from anarchon_nats.options import LIMITS, PREFIX, Options, options_from_url
from nats.aio.client import Client

PAGE = Path(__file__).resolve().parents[2] / "anarchon-core" / "docs" / "backends" / "nats.md"
KINDS: dict[str, type[Backend]] = {"lease": NatsLeaseBackend, "cas": NatsCasBackend, "msg-id": NatsMsgIdBackend}


@pytest.mark.parametrize("scheme", plugin.SCHEMES)
@pytest.mark.parametrize("strategy", KINDS)
def test_every_scheme_makes_every_strategy(scheme: str, strategy: str) -> None:
    backend = create_backend(f"{scheme}://h:1?strategy={strategy}", new_manager())
    assert type(backend) is KINDS[strategy]
    assert isinstance(backend, LeaseBackend) == (strategy == "lease")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nats://h?strategy=fast", "write one of lease, cas, msg-id"),
        ("nats://h?prefix=a..b", "with dots between them"),
        ("nats://h?prefix=a:b", "with dots between them"),
        ("nats://h?prefix=", "with dots between them"),
        ("nats://h?stream=a.b", "1 to 64 of"),
        ("nats://h?strategy=msg-id&duplicate_window=0", "seconds from 1 to 86400"),
        ("nats://h?strategy=msg-id&max_age=60", "for the whole duplicate_window (300 s)"),
        ("nats://h?strategy=cas&max_age=0", "seconds from 1 to"),
        ("nats://h?max_age=60", "max_age belongs to strategy=cas and msg-id, not to lease: leave it out"),
        ("nats://h?strategy=cas&duplicate_window=5", "duplicate_window belongs to strategy=msg-id, not to cas: leave it out"),
        ("nats://h?replicas=0", "a whole number from 1 to 5"),
        ("nats://h/0", "means nothing here"),
        ("nats://h:1,i:x", "is no server"),
        ("nats://h:0", "is no server"),
        ("nats://a,", "is no server"),
        ("nats://u:p@h,v:q@i", "once, before the first host"),
        ("nats://h#x", "write %23"),
        ("nats://h?prefx=a", "did you mean 'prefix'?"),
    ],
)
def test_k10_a_wrong_url_is_refused_in_one_sentence(url: str, said: str) -> None:
    with pytest.raises(UrlError) as refused:
        from_url(url)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prefix": "x:"}, "prefix="),
        ({"stream": "x y"}, "stream="),
        ({"duplicate_window": 0}, "duplicate_window="),
        ({"max_age": timedelta(days=400)}, "max_age="),
        ({"max_age": "long"}, "max_age="),
        ({"replicas": True}, "replicas="),
        ({"replicas": 6}, "from 1 to 5"),
    ],
)
def test_k10_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        NatsMsgIdBackend(Client(), **arguments)
    assert said in str(refused.value)


def test_a_client_of_another_kind_is_refused() -> None:
    with pytest.raises(OptionError, match=r"nats.connect\(\)"):
        NatsLeaseBackend("nats://localhost")  # type: ignore[arg-type]  # what is refused


def test_addresses_are_read_from_urls() -> None:
    address, options = options_from_url(BackendUrl("tls://me:s%40cret@a,b:5,[::1]:6?prefix=x.y&replicas=3&stream=S"))
    assert (address.servers, address.tls) == ((("a", 4222), ("b", 5), ("::1", 6)), True)
    assert (address.username, address.password, str(address)) == ("me", "s@cret", "a:4222,b:5,[::1]:6")
    assert (options.prefix, options.replicas, options.stream) == ("x.y", 3, "S")
    address, options = options_from_url(BackendUrl("nats://"))
    assert (str(address), address.tls, options) == ("localhost:4222", False, Options())
    address, _ = options_from_url(BackendUrl("nats://t0ken@h"))
    assert (address.username, address.password) == ("t0ken", None)


def test_the_password_is_never_shown(newest: Any) -> None:
    secret = "hunter2secret"
    texts = []
    for url in (f"nats://u:{secret}@127.0.0.1:1", f"nats://{secret}@127.0.0.1:1"):
        backend: Any = from_url(url)
        texts += [repr(backend), str(backend), repr(vars(backend)), repr(backend._link._where)]
        with pytest.raises((StoreSetupError, BackendUnavailable)) as refused:
            asyncio.run(backend.open())
        texts += [str(refused.value), repr(refused.value), str(refused.value.__cause__)]
    with pytest.raises(UrlError) as wrong:
        from_url(f"nats://u:{secret}@h?no=1")
    texts.append(str(wrong.value))
    assert not [text for text in texts if secret in text]


def test_the_page_lists_every_option_with_its_default_and_limits() -> None:
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5 and "://" in cells[4]:
            rows[cells[0].strip("`")] = cells
    taken = BackendUrl("nats://h")
    options_from_url(taken)
    assert set(rows) == set(taken._asked)
    for name, limit in LIMITS.items():
        assert rows[name][1].split()[0].replace(",", "") == str(limit.default)
        numbers = [int(text.replace(",", "")) for text in re.findall(r"[0-9][0-9,]*", rows[name][2])]
        assert numbers[:2] == [limit.least, limit.most]
    assert rows["prefix"][1].strip("`") == PREFIX
    for name, cells in rows.items():
        wrong = re.search(r"`([a-z]+://[^`]*)`: “([^”]*)”", cells[4])
        assert wrong is not None, name
        with pytest.raises(UrlError) as refused:
            from_url(wrong[1])
        assert wrong[2] in str(refused.value)
