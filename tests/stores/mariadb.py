"""A private MariaDB, reachable over TCP on the loopback and through a socket in its folder."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import ClassVar

from stores.server import Server, ServerFailed
from stores.system import find

__all__ = ["MariaDB"]

PREPARE_LIMIT_S = 120
PROTOCOL_VERSION = 10
GREETING_LENGTH = 5

ACCOUNT_SQL = """\
CREATE DATABASE IF NOT EXISTS {database};
CREATE USER IF NOT EXISTS '{user}'@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL PRIVILEGES ON *.* TO '{user}'@'127.0.0.1';
"""


class MariaDB(Server):
    """A MariaDB server with one database and one account that may do everything; every commit is written through."""

    name: ClassVar[str] = "MariaDB"
    programs: ClassVar[tuple[str, ...]] = ("mariadbd", "mariadb-install-db", "my_print_defaults")
    user = "cron"
    password = "cron"
    database = "cron"

    def url(self, scheme: str = "mysql", database: str | None = None) -> str:
        """Return the URL of a database under the scheme that a driver or backend asks for."""
        return f"{scheme}://{self.user}:{self.password}@{self.host}:{self.port}/{database or self.database}"

    def prepare(self) -> None:
        """Make the system tables and the file that makes the account at each start."""
        words = [
            find("mariadb-install-db") or "",
            *("--no-defaults", "--basedir=/usr", f"--datadir={self.folder}/data", *self._as_root()),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
            *("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M"),
        ]
        done = subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PREPARE_LIMIT_S, check=False
        )
        if done.returncode != 0:
            msg = f"mariadb-install-db failed: {done.stdout}{done.stderr}"
            raise ServerFailed(msg)
        account = ACCOUNT_SQL.format(database=self.database, user=self.user, password=self.password)
        (self.folder / "account.sql").write_text(account)

    def command(self) -> list[str]:
        """Return mariadbd itself; small, without name look-ups and without the machine's own configuration."""
        return [
            find("mariadbd") or "",
            *("--no-defaults", "--basedir=/usr", f"--datadir={self.folder}/data", *self._as_root()),
            *(f"--port={self.port}", f"--bind-address={self.host}", "--skip-name-resolve"),
            *(f"--socket={self.folder}/sock", f"--pid-file={self.folder}/pid", f"--tmpdir={self.folder}"),
            *("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=1"),
            *("--performance-schema=OFF", "--max-connections=200", f"--init-file={self.folder}/account.sql"),
        ]

    def answers(self) -> bool:
        """Return whether the server greets: its first packet names protocol 10 once the account is there."""
        with socket.create_connection((self.host, self.port), 2) as connection:
            connection.settimeout(2)
            greeting = b""
            while len(greeting) < GREETING_LENGTH and (part := connection.recv(64)):
                greeting += part
        return len(greeting) >= GREETING_LENGTH and greeting[4] == PROTOCOL_VERSION

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []
