"""docs/deploying.md: what stands on the page for other programs is what they take."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.npm import installed
from tests.release.distribution import ROOT
from txn import TopologyConfig
from txn.cli.commands.run import run

PAGE = (ROOT / "docs" / "deploying.md").read_text("utf-8")
KUBERNETES = "1.33"
LINTER = ("dockerfile-utils", "0.16.3")
COMMAND = "/srv/flights/.venv/bin/txn"


def blocks(language: str) -> list[str]:
    """The blocks of a language on the page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


def manifests() -> Iterator[dict[str, Any]]:
    """Every object of the manifests; the block that only adds to a container is none."""
    for block in blocks("yaml"):
        for document in yaml.safe_load_all(block):
            if "kind" in document:
                yield document


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    """The one container of a deployment."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def unit() -> configparser.ConfigParser:
    """The unit of systemd, as far as it is an INI file."""
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(blocks("ini")[0])
    return parsed


@pytest.mark.fast
def test_manifests_have_the_shapes_that_kubernetes_knows() -> None:
    """Strictly, by its own schemas: an unknown field is an error; executors' lines included."""
    seen = []
    for document in manifests():
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        seen.append(document["kind"])
        if document["kind"] == "Deployment":
            more = next(yaml.safe_load(b) for b in blocks("yaml") if b.startswith("args:"))
            for name, values in more.items():
                document["spec"]["template"]["spec"]["containers"][0][name] += values
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            document["spec"]["template"]["spec"]["containers"][0]["bogus"] = 1
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert {"Secret", "Deployment", "PodDisruptionBudget", "Role", "RoleBinding"} <= {*seen}


@pytest.mark.fast
def test_what_the_places_start_is_a_command_of_ours() -> None:
    """The arguments of the unit, of the pod and of executors' lines are options of `txn run`."""
    words = shlex.split(unit()["Service"]["ExecStart"])
    assert words[:2] == [COMMAND, "run"]
    (deployment,) = (one for one in manifests() if one["kind"] == "Deployment")
    entry = json.loads(next(re.finditer(r"^ENTRYPOINT (.*)$", blocks("dockerfile")[0], re.M))[1])
    assert entry[:2] == ["txn", "run"]
    more = next(yaml.safe_load(b) for b in blocks("yaml") if b.startswith("args:"))["args"]
    for arguments in (words[2:], entry[2:] + container(deployment)["args"] + more):
        with run.make_context("run", list(arguments)) as context:
            assert context.params["standby"]
            assert context.params["target"] == "flights.py:topology"


@pytest.mark.fast
def test_a_service_is_given_the_time_that_a_stop_may_take(tmp_path: Path) -> None:
    """Longer than a hung commit turn and the clean-up after it; and systemd reads the unit."""
    config = TopologyConfig()
    longest = 2.5 * config.message_timeout_secs + 2 * config.stop_grace_secs
    (deployment,) = (one for one in manifests() if one["kind"] == "Deployment")
    assert int(unit()["Service"]["TimeoutStopSec"]) > longest
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > longest
    if verifier := shutil.which("systemd-analyze"):
        file = tmp_path / "flights.service"
        file.write_text(blocks("ini")[0].replace(COMMAND, "/bin/true"), "utf-8")
        done = subprocess.run(
            [verifier, "verify", str(file)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_dockerfile_passes_its_linter(tmp_path: Path) -> None:
    """Instructions, flags and arguments as Docker knows them; one misspelt word is an error."""
    program = installed(*LINTER) / "bin" / "dockerfile-utils"
    file = tmp_path / "Dockerfile"
    for text, code in ((blocks("dockerfile")[0], 0), ("FROM debian\nWRKDIR /srv\n", 1)):
        file.write_text(text, "utf-8")
        done = subprocess.run(
            ["node", str(program), "lint", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout
