"""The claim contract against the MariaDB server that MARIADB_URL names."""

import os

from anarchon_conformance import LeaseSuite, Target


class MariaDBTarget(Target):
    url = os.environ.get("MARIADB_URL", "")


class TestMariaDB(LeaseSuite):
    target = MariaDBTarget()
