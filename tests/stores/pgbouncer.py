"""A private PgBouncer in transaction mode, in front of a private PostgreSQL."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import ClassVar

from stores.postgres import SYSTEM_USER, Postgres, as_postgres
from stores.server import Server
from stores.system import find

__all__ = ["PgBouncer"]

CONFIG = """\
[databases]
* = host={host} port={upstream} user={user} password={password}

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 400
server_login_retry = 0.5
"""


class PgBouncer(Server):
    """A pooler that hands out its server connections for one transaction each; it knows every database of its server."""

    name: ClassVar[str] = "PgBouncer"
    programs: ClassVar[tuple[str, ...]] = ("pgbouncer",)

    def __init__(self, folder: Path, upstream: Postgres) -> None:
        super().__init__(folder)
        self.upstream = upstream

    @classmethod
    def before(cls, upstream: Postgres) -> PgBouncer:
        """Start one in front of a running server; it lives in a folder beside the server's."""
        server = cls(upstream.folder.with_name(f"{upstream.folder.name}-pgbouncer"), upstream)
        server.start()
        return server

    def url(self, scheme: str = "postgresql", database: str | None = None) -> str:
        """Return the URL of a database through the pooler."""
        account = f"{self.upstream.user}:{self.upstream.password}"
        return f"{scheme}://{account}@{self.host}:{self.port}/{database or self.upstream.database}"

    def prepare(self) -> None:
        """Leave the folder to the user that the pooler runs as."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER, SYSTEM_USER)

    def command(self) -> list[str]:
        """Return the pooler itself; its port is known only now."""
        up = self.upstream
        text = CONFIG.format(host=self.host, port=self.port, upstream=up.port, user=up.user, password=up.password)
        config = self.folder / "pgbouncer.ini"
        config.write_text(text)
        config.chmod(0o644)
        return [*as_postgres(self.folder), find("pgbouncer") or "", str(config)]

    def answers(self) -> bool:
        """Return whether it listens."""
        with socket.create_connection((self.host, self.port), 2):
            return True
