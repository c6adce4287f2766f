"""A real Prometheus server (Debian's package) as a child process.

    python -m tests.metrics.server     # installs it, where root may and it is missing

It listens on loopback only, scrapes what it is told to, and dies with the process that started it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.children import LOOPBACK, Child, free_ports, listens, wait_until

__all__ = ["PrometheusServer", "prometheus", "promtool"]

CONFIG = """
global:
  scrape_interval: {interval}
  scrape_timeout: {interval}
  evaluation_interval: {interval}
rule_files: {rules}
scrape_configs:
  - job_name: txn
    static_configs:
      - targets: {targets}
"""


def prometheus() -> str:
    """The server's program; Debian's package where root may install it.

    Raises:
        OSError: there is none.
    """
    if found := shutil.which("prometheus"):
        return found
    if shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "prometheus"]
        subprocess.run(["apt-get", "update", "-q"], check=True, **quiet)
        subprocess.run(install, check=True, env=environ, **quiet)
        if found := shutil.which("prometheus"):
            return found
    raise OSError("there is no Prometheus on the PATH: install it (apt install prometheus)")


def promtool() -> str:
    """The program that checks rules, from the same package."""
    return str(Path(prometheus()).with_name("promtool"))


class PrometheusServer:
    """A server that scrapes some ports of this machine every half second.

    Args:
        folder: for its data; empty.
        targets: ports on loopback.
        rules: files with alert rules.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[int],
        rules: Sequence[Path] = (),
        interval: str = "500ms",
    ) -> None:
        (self.port,) = free_ports(1)
        self._child = Child(folder)
        self._config = folder / "prometheus.yml"
        self._config.write_text(
            CONFIG.format(
                interval=interval,
                rules=json.dumps([str(rule) for rule in rules]),
                targets=json.dumps([f"{LOOPBACK}:{port}" for port in targets]),
            )
        )

    def __enter__(self) -> PrometheusServer:  # noqa: PYI034 - typing.Self is Python 3.11
        """Start it, and wait until it answers."""
        listen = f"{LOOPBACK}:{self.port}"
        data = self._config.with_name("data")
        self._child.start(
            [
                prometheus(),
                f"--config.file={self._config}",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address={listen}",
            ]
        )
        try:
            wait_until(self._answers, "Prometheus answers")
        except BaseException:
            self._child.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Stop it."""
        self._child.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of a query as of now, by its HTTP API.

        Raises:
            AssertionError: it is no query.
        """
        found = self._get("query", query=expression)["result"]
        assert isinstance(found, list), found
        return found

    def value(self, expression: str) -> float | None:
        """The only value of a query; None if it has none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        alerts = self._get("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def evaluated(self) -> bool:
        """Whether every rule was evaluated, none of them with an error."""
        rules = [rule for group in self._get("rules")["groups"] for rule in group["rules"]]
        assert not [rule for rule in rules if rule.get("lastError")], rules
        return bool(rules) and all(rule["health"] == "ok" for rule in rules)

    def _answers(self) -> bool:
        self._child.check()
        if not listens(self.port):
            return False
        try:
            self._get("query", query="1")
        except urllib.error.HTTPError:  # it replays its log
            return False
        return True

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        url = f"http://{LOOPBACK}:{self.port}/api/v1/{what}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise AssertionError(error.read().decode()) from None
            raise
        assert found["status"] == "success", found
        data: dict[str, Any] = found["data"]
        return data


if __name__ == "__main__":
    try:
        prometheus()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Prometheus could not be installed: {error}")
