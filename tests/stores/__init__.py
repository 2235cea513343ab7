"""Private, throw-away store servers for tests: free ports, own data, killed by pid, never left behind.

Importing this package needs only the standard library and starts nothing.
"""

from __future__ import annotations

from stores.fleet import Fleet
from stores.mariadb import MariaDB
from stores.server import Server, ServerFailed

__all__ = ["Fleet", "MariaDB", "Server", "ServerFailed"]
