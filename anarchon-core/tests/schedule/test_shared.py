"""Equal schedules are one; caches are bounded; threads do not disturb each other."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from anarchon.schedule import At, Cron, Every, evaluate, grammar, parse, zones
from anarchon.schedule import digest as digest_module


def test_equal_schedules_are_equal_and_share_their_values() -> None:
    a, b = Cron("*/15 * * * *", "Europe/Berlin"), parse("0,15,30-30,45 0-23 * * *", "Europe/Berlin")
    assert isinstance(b, Cron)
    assert a == b
    assert hash(a) == hash(b)
    assert {a: 1}[b] == 1
    assert a.fields is b.fields
    assert a != Cron("*/15 * * * *", "Europe/Paris")
    assert a != "*/15 * * * *"


def test_100_000_jobs_share_the_schedules_of_h() -> None:
    jobs = [Cron("H * * * *", name=f"job-{n}") for n in range(2_000)]
    assert len(set(jobs)) == 60
    assert len({id(job.fields) for job in jobs}) == 60
    assert sum(map(sys.getsizeof, jobs)) < 2_000 * 100
    assert not hasattr(jobs[0], "__dict__")


def test_schedules_can_be_copied_and_pickled() -> None:
    for schedule in (Cron("0 9 * * *", "Europe/Berlin"), Every(seconds=5), At(_moment()), Cron("@daily") | "@hourly"):
        assert copy.deepcopy(schedule) == schedule
        assert pickle.loads(pickle.dumps(schedule)) == schedule


def _moment() -> datetime:
    return datetime(2027, 1, 1, tzinfo=UTC)


def test_a_million_expressions_do_not_stay_in_memory() -> None:
    # Counted in objects, not in bytes: after the caches are full, further expressions replace earlier ones.
    def use(begin: int, count: int) -> None:
        for n in range(begin, begin + count):
            cron = Cron(f"{n % 60} {n // 60 % 24} {n // 1440 % 28 + 1} * *", "Europe/Berlin")
            if n % 8 == 0:
                cron.next_after(1_800_000_000_000)

    use(0, 9_000)
    gc.collect()
    before = len(gc.get_objects())
    use(9_000, 9_000)
    gc.collect()
    assert len(gc.get_objects()) - before < 2_000


def test_every_cache_has_a_limit() -> None:
    caches = [
        grammar._fields,
        grammar._shared,
        zones._zone,
        zones._pinned_names,
        zones.year_table,
        digest_module._around,
        digest_module._of_years,
        digest_module._first_of_year,
        digest_module._plain,
        evaluate._kept.object_for,
    ]
    for cache in caches:
        maximum = cache.cache_info().maxsize  # type: ignore[attr-defined]
        assert maximum is not None
        assert 1 <= maximum <= 4096


def test_threads_get_the_answers_of_one_thread() -> None:
    texts = ["*/5 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 1,15 * 3", "15 30 2 * * *", "0 0 L * *"]
    rng = random.Random(5)
    questions = [(rng.choice(texts), rng.randrange(1_700_000_000_000, 1_900_000_000_000)) for _ in range(1200)]
    shared = {text: Cron(text, "Europe/Berlin") for text in texts}
    expected = [shared[text].next_after(t_ms) for text, t_ms in questions]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        barrier = threading.Barrier(4)

        def ask(_: int) -> list[int | None]:
            barrier.wait(30)
            return [shared[text].next_after(t_ms) for text, t_ms in questions]

        with ThreadPoolExecutor(4) as pool:
            for answers in pool.map(ask, range(4)):
                assert answers == expected
    finally:
        sys.setswitchinterval(interval)


def test_importing_the_package_imports_nothing_heavy() -> None:
    # `dateutil` and a subprocess come with croniter; the words are for tools.
    heavy = ("croniter", "dateutil", "rich", "anarchon.schedule.words", "anarchon.schedule.why")
    code = f"import sys, anarchon.schedule; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
