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
from anarchon_redis import (
    RedisIdmpBackend,
    RedisLeaseBackend,
    RedisScriptBackend,
    RedisStreamIdBackend,
    from_url,
    plugin,
)
from anarchon_redis.lua import SOURCES
from anarchon_redis.options import LIMITS, PREFIX, Options, options_from_url
from redis.asyncio import Redis as Client

PAGE = Path(__file__).resolve().parents[2] / "anarchon-core" / "docs" / "backends" / "redis.md"
KINDS: dict[str, type[Backend]] = {
    "lease": RedisLeaseBackend,
    "stream-id": RedisStreamIdBackend,
    "idmp": RedisIdmpBackend,
    "script": RedisScriptBackend,
}


@pytest.mark.parametrize("scheme", plugin.SCHEMES)
@pytest.mark.parametrize("strategy", KINDS)
def test_every_scheme_makes_every_strategy(scheme: str, strategy: str) -> None:
    place = "/run/redis.sock" if scheme == "unix" else "h:1"
    backend = create_backend(f"{scheme}://{place}?strategy={strategy}", new_manager())
    assert type(backend) is KINDS[strategy]
    assert isinstance(backend, LeaseBackend) == (strategy == "lease")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?strategy=fast", "write one of lease, stream-id, idmp, script"),
        ("redis://h?prefix=cron", "each followed by a colon"),
        ("redis://h?prefix={x}:", "each followed by a colon"),
        ("redis://h?prefix=:", "each followed by a colon"),
        ("redis://h?strategy=idmp&duration=0", "a whole number from 1 to 86400"),
        ("redis://h?strategy=idmp&duration=86401", "a whole number from 1 to 86400"),
        ("redis://h?strategy=script&window=0.5", "seconds from 1 to 86400"),
        ("redis://h?duration=5", "duration belongs to strategy=idmp, not to lease: leave it out"),
        ("redis://h?strategy=idmp&window=5", "window belongs to strategy=script, not to idmp: leave it out"),
        ("redis://h?wait_replicas=-1", "a whole number from 0 to 100"),
        ("redis://h?wait_replicas=1&cluster=true", "min-replicas-to-write"),
        ("redis://h?cluster=maybe", "write true or false"),
        ("redis://h/1?cluster=true", "has one database"),
        ("unix:///s?cluster=true", "reached over TCP"),
        ("redis://h/zero", "is no database"),
        ("redis://h,i", "write one host"),
        ("redis://h#x", "write %23"),
        ("unix://", "unix:///path/to/redis.sock"),
        ("unix:///s?db=-1", "a whole number from 0"),
        ("redis://h?prefx=a:", "did you mean 'prefix'?"),
        ("redis://h?db=1", "unknown option 'db'"),
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
        ({"prefix": "x"}, "prefix="),
        ({"duration": 0}, "duration="),
        ({"duration": 1.5}, "whole seconds"),
        ({"window": timedelta(days=2)}, "window="),
        ({"window": "long"}, "window="),
        ({"wait_replicas": True}, "wait_replicas="),
        ({"wait_replicas": 101}, "from 0 to 100"),
    ],
)
def test_k10_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        RedisLeaseBackend(Client(), **arguments)
    assert said in str(refused.value)


def test_a_client_of_another_kind_is_refused() -> None:
    import redis

    with pytest.raises(OptionError, match=r"redis.asyncio.Redis"):
        RedisLeaseBackend(redis.Redis())  # type: ignore[arg-type]


def test_addresses_are_read_from_urls() -> None:
    address, options = options_from_url(BackendUrl("rediss://me:s%40cret@[::1]:7000/3?prefix=a:b:&wait_replicas=2"))
    assert (address.host, address.port, address.database, address.tls) == ("::1", 7000, 3, True)
    assert (address.username, address.password) == ("me", "s@cret")
    assert (options.prefix, options.wait_replicas) == ("a:b:", 2)
    address, _ = options_from_url(BackendUrl("unix://:pw@/run/redis.sock?db=4"))
    assert (address.path, address.database, address.password, address.username) == ("/run/redis.sock", 4, "pw", None)
    address, options = options_from_url(BackendUrl("valkey://"))
    assert (str(address), options) == ("localhost:6379", Options())


def test_the_password_is_never_shown(newest: Any) -> None:
    secret = "hunter2secret"
    texts = []
    for url in (f"redis://u:{secret}@127.0.0.1:{newest.port}", f"redis://u:{secret}@127.0.0.1:1", f"unix://u:{secret}@/no/sock"):
        backend: Any = from_url(url)
        texts += [repr(backend), str(backend), repr(vars(backend)), repr(backend._link._where)]
        with pytest.raises((StoreSetupError, BackendUnavailable)) as refused:
            asyncio.run(backend.open())
        texts += [str(refused.value), repr(refused.value), str(refused.value.__cause__)]
    with pytest.raises(UrlError) as wrong:
        from_url(f"redis://u:{secret}@h?no=1")
    texts.append(str(wrong.value))
    assert not [text for text in texts if secret in text]


def test_a_unix_socket_is_a_place(newest: Any, on: Any) -> None:
    store = on(newest, "lease")

    async def act() -> None:
        backend: Any = from_url(f"unix://{newest.folder}/sock?prefix={store.prefix}")
        await backend.open()
        try:
            assert (await backend.claim(await store.request(backend))).won
        finally:
            await backend.close()

    asyncio.run(act())


def test_the_page_lists_every_option_with_its_default_and_limits() -> None:
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5 and "://" in cells[4]:
            rows[cells[0].strip("`")] = cells
    taken = BackendUrl("unix:///s")
    options_from_url(taken)
    assert set(rows) == set(taken._asked)
    for name, limit in LIMITS.items():
        assert rows[name][1].split()[0] == str(limit.default)
        numbers = [int(text.replace(",", "")) for text in re.findall(r"[0-9][0-9,]*", rows[name][2])]
        assert numbers[:2] == [limit.least, limit.most]
    assert rows["prefix"][1].strip("`") == PREFIX
    for name, cells in rows.items():
        wrong = re.search(r"`([a-z]+://[^`]*)`: “([^”]*)”", cells[4])
        assert wrong is not None, name
        with pytest.raises(UrlError) as refused:
            from_url(wrong[1])
        assert wrong[2] in str(refused.value)


def test_the_page_names_every_command_of_the_scripts() -> None:
    named = set(re.findall(r"[A-Z]{3,}", PAGE.read_text()))
    used = {name for source in SOURCES.values() for name in re.findall(r"redis\.p?call\('([A-Z]+)'", source)}
    assert used <= named
