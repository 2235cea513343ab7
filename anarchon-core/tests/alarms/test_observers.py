"""The observers of the core: counters for a metrics endpoint, pings for dead-man services."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from anarchon import Scheduler
from anarchon.errors import BackendUnavailable, ConfigurationError
from anarchon.observers import Metrics, Pings
from anarchon.observers.metrics import SERIES_MAX
from anarchon.observers.pings import TRIES
from anarchon.types import RunKey, RunStatus
from rig import FaultyBackend, Grid, Tape, eventually, observers

KEY = RunKey("job", 1_800_000_000_000)


class Service:
    """A dead-man service: a real HTTP server on a free port that writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refused = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                if service.refused > 0:
                    service.refused -= 1
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                del words

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_each_event_moves_its_counter() -> None:
    metrics = Metrics()
    told = observers(metrics)
    told.tell("run_started", instance="i", key=KEY, attempt=1, late_ms=5)
    for status, duration_ms in ((RunStatus.SUCCESS, 1_500), (RunStatus.FAILED, 250), (RunStatus.SUCCESS, 250)):
        told.tell(
            "run_finished", instance="i", key=KEY, attempt=1, status=status, error=None, duration_ms=duration_ms, recorded=True
        )
    told.tell("run_taken_over", instance="i", key=KEY, attempt=2, previous="j")
    told.tell("run_released", instance="i", key=KEY, attempt=2, why="hand-over")
    told.tell("lease_lost", instance="i", key=KEY, attempt=2, why="late")
    told.tell("slot_skipped", instance="i", key=KEY, reason="overlap")
    told.tell("run_missed", instance="i", key=KEY, reason="nobody")
    told.tell("backend_error", instance="i", operation="claim", error=BackendUnavailable("away"))
    assert metrics.value("anarchon_runs_started_total", job="job") == 1
    assert metrics.value("anarchon_runs_finished_total", job="job", status="success") == 2
    assert metrics.value("anarchon_runs_finished_total", job="job", status="failed") == 1
    assert metrics.value("anarchon_run_seconds_total", job="job") == 2.0
    for name in ("runs_taken_over", "runs_released", "leases_lost", "slots_skipped", "slots_missed"):
        assert metrics.value(f"anarchon_{name}_total", job="job") == 1
    assert metrics.value("anarchon_store_errors_total", operation="claim") == 1
    assert metrics.value("anarchon_slots_missed_total", job="another") == 0


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    told = observers(metrics)
    for name in ('quo"te', "back\\slash", "plain"):
        told.tell("run_missed", instance="i", key=RunKey(name, 1), reason="nobody")
    lines = metrics.text().splitlines()
    assert lines[0].startswith("# HELP anarchon_slots_missed_total ")
    assert lines[1] == "# TYPE anarchon_slots_missed_total counter"
    assert set(lines[2:]) == {
        'anarchon_slots_missed_total{job="plain"} 1',
        'anarchon_slots_missed_total{job="quo\\"te"} 1',
        'anarchon_slots_missed_total{job="back\\\\slash"} 1',
    }
    assert all(re.fullmatch(r'[a-z_]+\{([a-z]+="(\\.|[^"\\])*",?)+\} [0-9.e+]+', line) for line in lines[2:])
    assert metrics.text().endswith("\n")
    assert Metrics().text() == ""


def test_large_counts_keep_their_digits() -> None:
    metrics = Metrics()
    told = observers(metrics)
    metrics._counts["anarchon_slots_missed_total", (("job", "job"),)] = 12_345_677
    told.tell("run_missed", instance="i", key=KEY, reason="nobody")
    assert 'anarchon_slots_missed_total{job="job"} 12345678\n' in metrics.text()


def test_k9_the_number_of_series_is_bounded() -> None:
    metrics = Metrics()
    told = observers(metrics)
    for number in range(SERIES_MAX + 50):
        told.tell("run_missed", instance="i", key=RunKey(f"job-{number}", 1), reason="nobody")
    assert len(metrics.text().splitlines()) == SERIES_MAX + 2
    told.tell("run_missed", instance="i", key=RunKey("job-0", 2), reason="nobody")
    assert metrics.value("anarchon_slots_missed_total", job="job-0") == 2


def test_a_scheduler_moves_the_counters() -> None:
    metrics, tape = Metrics(), Tape()
    scheduler = Scheduler(backend=FaultyBackend(), plugins=[metrics, tape])
    scheduler.add_job(lambda: None, Grid(100), name="job", jitter=0)
    scheduler.start_in_thread()
    tape.wait("run_finished", 3)
    scheduler.shutdown()
    started = metrics.value("anarchon_runs_started_total", job="job")
    assert started == metrics.value("anarchon_runs_finished_total", job="job", status="success") >= 3


# -- pings ------------------------------------------------------------------------------------------------------------


def finished(status: RunStatus, *, job: str = "job", recorded: bool = True) -> dict[str, object]:
    key = RunKey(job, 1)
    return {
        "instance": "i", "key": key, "attempt": 1, "status": status, "error": None, "duration_ms": 1, "recorded": recorded
    }  # fmt: skip


def test_success_failure_and_a_missed_slot_go_to_their_addresses(service: Service) -> None:
    told = observers(Pings(success={"job": service.url("ok")}, failure={"job": service.url("fail")}))
    told.tell("run_finished", **finished(RunStatus.SUCCESS))
    told.tell("run_finished", **finished(RunStatus.FAILED))
    told.tell("run_finished", **finished(RunStatus.TIMEOUT))
    told.tell("run_missed", instance="i", key=KEY, reason="nobody")
    eventually(lambda: len(service.asked) == 4, "all pings arrive")
    assert service.asked == ["/ok", "/fail", "/fail", "/fail"]


def test_nothing_is_sent_for_other_jobs_or_for_what_the_store_did_not_take(service: Service) -> None:
    told = observers(Pings(success={"job": service.url("ok")}))
    told.tell("run_finished", **finished(RunStatus.SUCCESS, job="another"))
    told.tell("run_finished", **finished(RunStatus.SUCCESS, recorded=False))
    told.tell("run_finished", **finished(RunStatus.FAILED))
    told.tell("run_finished", **finished(RunStatus.SUCCESS))
    eventually(lambda: bool(service.asked), "the last one arrives")
    assert service.asked == ["/ok"]


def test_a_refused_ping_is_tried_again_and_given_up_with_a_log_line(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    told = observers(Pings(success={"job": service.url("ok"), "next": service.url("next")}))
    service.refused = TRIES
    told.tell("run_finished", **finished(RunStatus.SUCCESS))
    told.tell("run_finished", **finished(RunStatus.SUCCESS, job="next"))
    eventually(lambda: "/next" in service.asked, "the next one arrives")
    assert service.asked == ["/ok"] * TRIES + ["/next"]
    assert f"ping {TRIES} of {TRIES}" in caplog.text


def test_k5_a_service_that_is_away_or_talks_nonsense_stops_no_later_ping(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Service()
    gone.close()
    bad = {"gone": gone.url("x"), "bad": "http://127.0.0.1:1/a b\nc", "port": "http://127.0.0.1:99999/", "host": "http://[::1/"}
    pings = Pings(success={"gone": bad["gone"], "fine": service.url("fine")})
    pings._success |= bad  # what `Pings` may not see at construction must not end its thread either
    told = observers(pings)
    with caplog.at_level(logging.WARNING, "anarchon.pings"):
        for job in (*bad, "fine"):
            told.tell("run_finished", **finished(RunStatus.SUCCESS, job=job))
        eventually(lambda: bool(service.asked), "the good one arrives")
    assert service.asked == ["/fine"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "host/x",
        "",
        "file:///etc/passwd",
        "https:///path",
        "http://[::1/",
        "http://host:99999/x",
        "http://a b/",
        "http://user:s3cret@host/",
    ],
)
def test_an_address_that_is_no_http_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no http or https address") as caught:
        Pings(success={"job": url})
    assert "s3cret" not in str(caught.value)


def test_a_scheduler_pings_after_each_success(service: Service) -> None:
    pings = Pings(success={"job": service.url("ok")}, failure={"bad": service.url("fail")})
    scheduler = Scheduler("memory://", plugins=[pings])
    scheduler.add_job(lambda: None, Grid(100), name="job", jitter=0)
    scheduler.add_job(lambda: 1 // 0, Grid(100), name="bad", jitter=0)
    scheduler.start_in_thread()
    eventually(lambda: service.asked.count("/ok") >= 2 and service.asked.count("/fail") >= 2, "both kinds arrive")
    scheduler.shutdown()


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_names_every_counter_with_its_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alarms.md").read_text()
    rows = re.findall(r"^\| `(anarchon_\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    metrics = Metrics()
    told = observers(metrics)
    told.tell("run_started", instance="i", key=KEY, attempt=1, late_ms=5)
    told.tell("run_finished", **finished(RunStatus.SUCCESS))
    for event in ("run_taken_over", "run_released", "lease_lost", "slot_skipped", "run_missed"):
        told.tell(event, instance="i", key=KEY, attempt=2, previous="j", why="x", reason="x")
    told.tell("backend_error", instance="i", operation="claim", error=BackendUnavailable("away"))
    counted = re.findall(r"^(anarchon_\w+)\{(.*)\}", metrics.text(), re.MULTILINE)
    labels = {name: ", ".join(f"`{label}`" for label in re.findall(r"(\w+)=", text)) for name, text in counted}
    assert dict(rows) == labels
