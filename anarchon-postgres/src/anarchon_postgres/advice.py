"""What about a server weakens the promises, in sentences for `anarchon check`."""

from __future__ import annotations

from typing import Final

from anarchon_postgres.schema import Names
from anarchon_postgres.store import Facts

__all__ = ["FAILOVER", "advice"]

OFFSET_MOST_MS: Final = 1_000

FAILOVER: Final = (
    "a failover to an asynchronous replica can lose the last acknowledged claims: those slots may run a second time, and "
    "those results may be missing"
)


def advice(facts: Facts, names: Names, offset_ms: float) -> list[str]:
    """Return the warnings; `offset_ms` is how far this machine's clock is ahead of the server's."""
    found: list[str] = []
    if facts.standby:
        found.append("this server is a hot standby now: nothing can be claimed until the backend reaches the primary")
    if facts.synchronous_commit == "off":
        found.append(
            "synchronous_commit is off: a crash of the server can lose acknowledged claims, and those slots may run a second "
            f"time: ALTER ROLE {facts.user} SET synchronous_commit = on"
        )
    if not facts.fsync:
        found.append("fsync is off: a power failure can lose claims or destroy the database: set fsync = on")
    if not facts.has_function:
        found.append(
            f"user {facts.user!r} may not create functions in schema {names.schema!r}, so each claim takes several round trips: "
            f"GRANT CREATE ON SCHEMA {names.schema} TO {facts.user}, or open once as the owner of the tables"
        )
    if facts.replicas and (not facts.synchronous_standby or facts.synchronous_commit == "local"):
        found.append(f"the replicas of this server are asynchronous: {FAILOVER}")
    if facts.isolation != "read committed":
        found.append(
            f"the default isolation of user {facts.user!r} is {facts.isolation}: each write is wrapped in a READ COMMITTED "
            "transaction and takes two round trips more"
        )
    if facts.encoding != "UTF8":
        found.append(f"the database is encoded in {facts.encoding}, not UTF8: job names with other letters cannot be stored")
    if abs(offset_ms) > OFFSET_MOST_MS:
        way = "ahead of" if offset_ms > 0 else "behind"
        found.append(
            f"this machine's clock is {abs(offset_ms) / 1000:.1f} s {way} the server's: jobs follow the server's clock, what you "
            "read in logs does not; synchronise both (NTP)"
        )
    return found
