"""Options and limits: what may be written, what is refused and with which remedy, and that the documentation says the same."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anarchon import Scheduler
from anarchon.backend import LeaseBackend
from anarchon.errors import BackendUnavailable, OptionError, UrlError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.url import BackendUrl
from anarchon_rabbitmq import RabbitMQBackend, Strategy, plugin
from anarchon_rabbitmq.main import COSTLY_QUEUES
from anarchon_rabbitmq.names import Names, holder_of
from anarchon_rabbitmq.options import PREFIX, SLOT_TTL, Options, options_from_url

PAGE = Path(__file__).resolve().parents[2] / "anarchon-core" / "docs" / "backends" / "rabbitmq.md"


def handler() -> None:
    """Do nothing."""


@pytest.mark.parametrize("scheme", plugin.SCHEMES)
@pytest.mark.parametrize("strategy", Strategy)
def test_every_scheme_makes_every_strategy(scheme: str, strategy: str) -> None:
    backend = create_backend(f"{scheme}://h?strategy={strategy}", new_manager())
    assert isinstance(backend, RabbitMQBackend)
    assert not isinstance(backend, LeaseBackend)
    assert backend.limits.resolves_unknown == (strategy == "token")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://h?strategy=fast", "write one of token, gate"),
        ("amqp://h?prefix=cron", "each followed by a dot"),
        ("amqp://h?prefix={x}.", "each followed by a dot"),
        ("amqp://h?prefix=.", "each followed by a dot"),
        (f"amqp://h?prefix={'x' * 64}.", "at most 64 characters"),
        ("amqp://h?slot_ttl=0.5", "write seconds from 1 to 604800"),
        ("amqp://h?slot_ttl=604801", "write seconds from 1 to 604800"),
        ("amqp://h?slot_ttl=long", "write seconds from 1 to 604800"),
        ("amqp://h?slot_tll=5", "did you mean 'slot_ttl'?"),
        ("amqp://h?heartbeat=5", "unknown option 'heartbeat'"),
        ("amqp://h:1,i:2", "write one host"),
        ("amqp://h/v#x", "write %23"),
    ],
)
def test_k10_a_wrong_url_is_refused_in_one_sentence(url: str, said: str) -> None:
    with pytest.raises(UrlError) as refused:
        RabbitMQBackend(url)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prefix": "x"}, "prefix="),
        ({"prefix": None}, "prefix="),
        ({"slot_ttl": 0}, "slot_ttl=0 is refused: write seconds from 1 to 604800"),
        ({"slot_ttl": timedelta(days=8)}, "slot_ttl=691200"),
        ({"slot_ttl": "long"}, "write seconds or a timedelta"),
        ({"slot_ttl": True}, "write seconds or a timedelta"),
        ({"strategy": "lease"}, "write one of token, gate"),
        ({"connection": "amqp://h"}, "hand over a connection of aio_pika"),
    ],
)
def test_k10_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        RabbitMQBackend(**arguments)
    assert said in str(refused.value)


def test_addresses_are_read_from_urls() -> None:
    address, options = options_from_url(BackendUrl("amqps://me:s%40cret@[::1]:7000/my%2Fvhost?prefix=a.b.&slot_ttl=1.5"))
    assert (address.host, address.port, address.vhost, address.tls) == ("::1", 7000, "my/vhost", True)
    assert (address.username, address.password) == ("me", "s@cret")
    assert (options.prefix, options.slot_ttl_ms, options.strategy) == ("a.b.", 1_500, Strategy.TOKEN)
    address, options = options_from_url(BackendUrl("amqp://"))
    assert (str(address), address.username, options) == ("localhost:5672", "guest", Options())
    assert options_from_url(BackendUrl("amqps://h/%2F"))[0].vhost == "/"


def test_what_a_url_says_counts_more_than_an_argument() -> None:
    backend = RabbitMQBackend("amqp://h?slot_ttl=900", slot_ttl=600, prefix="mine.", strategy="gate")
    assert backend.limits.remembers_ms == 900_000
    assert "prefix='mine.', strategy=gate" in repr(backend)


def test_the_password_is_never_shown() -> None:
    secret = "hunter2secret"
    backend = RabbitMQBackend(f"amqp://u:{secret}@127.0.0.1:1")
    texts = [repr(backend), str(backend), repr(vars(backend)), repr(backend._link._where)]
    with pytest.raises(BackendUnavailable) as refused:
        asyncio.run(backend.open())
    texts += [str(refused.value), repr(refused.value), str(refused.value.__cause__)]
    with pytest.raises(UrlError) as wrong:
        RabbitMQBackend(f"amqp://u:{secret}@h?no=1")
    assert not [text for text in [*texts, str(wrong.value)] if secret in text]


# -- limits that are refused when a job is added: the sentence names the option and what to write instead


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_late": 300}, r"max_late=300 .*forgets a run after 300 s.*shorten max_late or write slot_ttl=\d+ or more"),
        ({"max_late": 299, "jitter": 2}, r"max_late=299 with jitter=2 and a clock allowance of .*write slot_ttl=\d+ or more"),
        ({"name": "my.job"}, r"my\.job.*must match \[A-Za-z0-9_-\]"),
        ({"name": "x" * 101}, r"must match \[A-Za-z0-9_-\]\{1,100\}"),
        ({"name": "naïve"}, "must match"),
        ({"history_ttl": 60}, "history_ttl=60: RabbitMQBackend trims its history by size only; use history_size"),
        ({"catch_up": "all"}, "catch_up='all': RabbitMQBackend only decides who is first.*leave it out, or use a lease backend"),
        ({"max_attempts": 2}, "max_attempts=2: .*holds no lease; leave it out, or use a lease backend"),
        ({"retries": 1}, "retries=1: .*retry inside the handler"),
        ({"overlap": "skip"}, "overlap='skip': .*write overlap='allow'"),
        ({"overlap": "queue"}, "overlap='queue': .*write overlap='allow'"),
        ({"lease": 30}, "lease=30: .*leave it out"),
        ({"heartbeat": 5}, "heartbeat=5: .*leave it out"),
    ],
)
@pytest.mark.parametrize("strategy", Strategy)
def test_k10_what_this_backend_cannot_honour_is_refused_at_add(strategy: str, options: dict[str, Any], said: str) -> None:
    scheduler = Scheduler(backend=RabbitMQBackend("amqp://h", strategy=strategy))
    with pytest.raises(OptionError, match=said):
        scheduler.add_job(handler, "0 * * * *", **{"name": "job", **options})


def test_k10_the_remedy_that_is_named_is_one() -> None:
    with pytest.raises(OptionError) as refused:
        Scheduler(backend=RabbitMQBackend("amqp://h")).add_job(handler, "0 * * * *", name="job", max_late=600)
    found = re.search(r"slot_ttl=(\d+)", str(refused.value))
    assert found is not None
    backend = RabbitMQBackend("amqp://h", slot_ttl=int(found[1]))
    Scheduler(backend=backend).add_job(handler, "0 * * * *", name="job", max_late=600)


def test_defaults_are_safe() -> None:
    Scheduler(backend=RabbitMQBackend("amqp://h")).add_job(handler, "* * * * *", name="job")


@pytest.mark.parametrize(("slot_ttl", "warned"), [(300, True), (150, False)])
def test_a_job_whose_queues_cost_is_warned_about(slot_ttl: int, *, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler(backend=RabbitMQBackend("amqp://h", slot_ttl=slot_ttl))
    with caplog.at_level(logging.WARNING):
        scheduler.add_job(handler, "*/1 * * * * *", name="each-second")
    said = [record.getMessage() for record in caplog.records]
    assert bool(said) == warned
    assert not said or ("each-second: " in said[0] and "300 at a time" in said[0] and "shorten slot_ttl" in said[0])
    assert COSTLY_QUEUES == 200


# -- names


def test_c07_the_longest_names_fit_into_a_queue() -> None:
    from anarchon.types import RunKey

    names = Names("p" * 63 + ".")
    assert len(names.run(RunKey("j" * 100, 10**13, "m" * 13))) <= 255
    assert len(names.history("j" * 100)) <= 255
    assert len(holder_of("f" * 32, "host" * 200).encode()) <= 255


# -- the page


def test_the_page_lists_every_option_with_its_default_and_limits() -> None:
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 5 and "://" in cells[4]:
            rows[cells[0].strip("`")] = cells
    taken = BackendUrl("amqp://h")
    options_from_url(taken)
    assert set(rows) == set(taken._asked)
    assert rows["slot_ttl"][1].split()[0] == str(SLOT_TTL.default)
    numbers = [int(text.replace(",", "")) for text in re.findall(r"[0-9][0-9,]*", rows["slot_ttl"][2])]
    assert numbers == [SLOT_TTL.least, SLOT_TTL.most]
    assert rows["prefix"][1].strip("`") == PREFIX
    assert rows["strategy"][1].strip("`") == Options().strategy
    assert rows["strategy"][2] == ", ".join(Strategy)
    for name, cells in rows.items():
        wrong = re.search(r"`([a-z]+://[^`]*)`: “([^”]*)”", cells[4])
        assert wrong is not None, name
        with pytest.raises(UrlError) as refused:
            RabbitMQBackend(wrong[1])
        assert wrong[2] in str(refused.value)


def test_the_page_names_the_limits_of_the_code() -> None:
    text = PAGE.read_text()
    assert f"more than {COSTLY_QUEUES} queues is warned about" in text
    assert "`cron.sync.slot.1791633610000`" in text
