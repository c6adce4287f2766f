"""Install the wheel where users have Spark, with pip and with uv, and print what changed there.

make test-environments ARGS='--only empty,SPARK_HOME'
python -m tests.matrix.environments --uv UV       all of them; exits 1 if one is not as it must be

Every environment is made anew below a temporary folder and removed afterwards. The index has
pyspark as sources only: wheels of it may lie in a folder that PIP_FIND_LINKS and UV_FIND_LINKS
name, which saves minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.runs import without_spark
from tests.release.distribution import ROOT, build
from txn.spark.versions import LINES

RELEASES = [line.newest for line in LINES.values()]
NEWEST_LINE = list(LINES)[-1]

PRINT_PACKAGES = """
import json, importlib.metadata as metadata
print(json.dumps({d.name.lower().replace("_", "-"): d.version for d in metadata.distributions()}))
"""
PRINT_SPARK = """
import os, pyspark
home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
print(pyspark.__version__, "" if os.path.isdir(os.path.join(home, "jars")) else "no jars")
"""


@dataclass(frozen=True)
class Case:
    """An environment, and what is asked of the installer there."""

    name: str
    installed: tuple[str, ...] = ()
    """Requirements that are there before."""
    extra: str = ""
    constraint: str = ""
    spark_home: str = ""
    """The version of a Spark that only SPARK_HOME and PYTHONPATH name."""
    by_conda: bool = False
    spark: str = ""
    """The version, or the line, of the Spark that must be there afterwards; empty: none."""
    refused: bool = False
    """The installer must fail, and change nothing."""


def cases() -> list[Case]:
    """Return every environment that is tried."""
    conda = Case("conda's pyspark 4.1.4", ("pyspark==4.1.4",), by_conda=True, spark="4.1.4")
    spark, delta = "[spark]", "delta-spark"
    return [
        Case("empty"),
        Case("empty", extra=spark, spark=NEWEST_LINE),
        *(Case(f"pyspark {v}", (f"pyspark=={v}",), spark=v) for v in RELEASES),
        *(Case(f"pyspark {v}", (f"pyspark=={v}",), spark, spark=v) for v in RELEASES),
        _with_delta("3.5.9", f"{delta}==3.3.2"),
        _with_delta("4.1.1", f"{delta}==4.3.1"),
        Case("pyspark 4.3.0", ("pyspark==4.3.0",), spark="4.3.0"),
        *(Case(f"SPARK_HOME {v}", spark_home=v, spark=v) for v in ("4.1.4", "3.5.9")),
        conda,
        Case(conda.name, conda.installed, spark, by_conda=True, spark="4.1.4"),
        _constrained("4.1.4", extra=spark),
        _constrained("4.1.4", installed=("pyspark==4.1.4",)),
        _constrained("3.5.9", extra=spark),
        Case("constraint 4.3.0", (), spark, "pyspark==4.3.0", refused=True),
        Case("pyspark-client 4.1.3 (Connect)", ("pyspark-client==4.1.3",), spark="4.1.3"),
    ]


def _with_delta(version: str, delta: str) -> Case:
    name = f"pyspark {version}, {delta}"
    return Case(name, (f"pyspark=={version}", delta), "[spark]", spark=version)


def _constrained(version: str, extra: str = "", installed: tuple[str, ...] = ()) -> Case:
    return Case(f"constraint {version}", installed, extra, f"pyspark=={version}", spark=version)


@dataclass(frozen=True)
class Place:
    """A virtual environment with the variables that its user has."""

    folder: Path
    python: Path
    variables: Mapping[str, str]

    def packages(self) -> dict[str, str]:
        """Return the installed distributions: a name -> its version."""
        return dict(json.loads(_run([self.python, "-I", "-c", PRINT_PACKAGES])))

    def spark(self) -> str:
        """Return the version of pyspark that Python imports, or `none`."""
        command = [str(self.python), "-c", PRINT_SPARK]
        done = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, cwd=self.folder
        )
        return done.stdout.strip() if done.returncode == 0 else "none"


@dataclass(frozen=True)
class Outcome:
    """The changes that an installer made to an environment."""

    installer: str
    case: Case
    before: str
    """The Spark that Python imported before."""
    after: str
    changed: tuple[str, ...]
    """Packages that had another version before, or are gone."""
    brought: tuple[str, ...]
    """Packages of Spark that are new."""
    error: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Nothing was changed, and the Spark is the one that it must be."""
        if self.changed or bool(self.error) != self.case.refused:
            return False
        if self.case.spark_home and any("pyspark" in package for package in self.brought):
            return False
        version = self.after.split(" ")[0]
        return f"{version}.".startswith(f"{self.case.spark or 'none'}.")

    def __str__(self) -> str:
        """Return its line of the table."""
        return (
            f"{self.installer:4} {self.case.name:34} {self.case.extra or '-':8} {self.before:14} "
            f"{self.after:14} {'yes' if self.is_good else 'NO':4} {self.seconds:4.0f} s "
            f"{', '.join(self.changed) or '-'} | {', '.join(self.brought) or '-'} | "
            f"{self.error or '-'}"
        )


HEADER = (
    f"{'':4} {'environment':34} {'asked':8} {'before':14} {'after':14} {'good':4} {'':6} "
    "changed | brought | error"
)


class Trial:
    """Makes environments and runs the installers in them."""

    def __init__(self, wheel: Path, pip: str, uv: str, python: str) -> None:
        self._wheel = wheel.resolve()
        self._installers = {"pip": pip, "uv": uv}
        self._python = python

    def outcome(self, installer: str, case: Case) -> Outcome:
        """Run one installer in a new environment."""
        with tempfile.TemporaryDirectory(prefix="txn-environment-") as folder:
            place = self._make(case, Path(folder))
            packages, spark = place.packages(), place.spark()
            started = time.monotonic()
            error = self._install(installer, case, place)
            seconds = time.monotonic() - started
            after = place.packages()
            return Outcome(
                installer,
                case,
                spark,
                place.spark(),
                _changed(packages, after),
                _brought(packages, after),
                error,
                seconds,
            )

    def _make(self, case: Case, folder: Path) -> Place:
        python = self._new_environment(folder / "environment", case.installed)
        variables = without_spark()
        if case.spark_home:
            variables |= self._spark_home(case.spark_home, folder)
        if case.by_conda:
            _installed_by_conda(python)
        return Place(folder, python, variables)

    def _new_environment(self, folder: Path, requirements: Sequence[str]) -> Path:
        """Make an environment with uv, which links files where pip copies 450 MB."""
        uv, python = self._installers["uv"], folder / "bin" / "python"
        _run([uv, "venv", "-q", "--python", self._python, folder])
        if requirements:
            _run([uv, "pip", "install", "-q", "--python", python, *requirements])
        return python

    def _install(self, installer: str, case: Case, place: Place) -> str:
        """Install the wheel as a user does. Returns the installer's last words if it fails."""
        program = self._installers[installer]
        command = [program, "pip", "install", "--python", str(place.python)]
        if installer == "pip":
            command = [program, "--python", str(place.python), "install"]
        command.append(f"txn-spark{case.extra} @ {self._wheel.as_uri()}")
        if case.constraint:
            constraints = place.folder / "constraints.txt"
            constraints.write_text(f"{case.constraint}\n")
            command += ["-c", str(constraints)]
        done = subprocess.run(command, env=place.variables, capture_output=True, text=True)
        words = " ".join((done.stdout + done.stderr).split())
        return words[-300:] if done.returncode else ""

    def _spark_home(self, version: str, folder: Path) -> dict[str, str]:
        """Lay a Spark out as Apache's archive has it: python/pyspark, python/lib/py4j-*.zip."""
        python = self._new_environment(folder / "source", [f"pyspark=={version}"])
        packages = next(python.parent.parent.glob("lib/python*/site-packages"))
        home = folder / "spark"
        (home / "python" / "lib").mkdir(parents=True)
        shutil.move(packages / "pyspark", home / "python" / "pyspark")
        for name in ("bin", "jars", "sbin"):
            shutil.move(home / "python" / "pyspark" / name, home / name)
        archive = str(home / "python" / "lib" / "py4j-src")
        py4j = shutil.make_archive(archive, "zip", packages, "py4j")
        path = os.pathsep.join([str(home / "python"), py4j])
        return {"SPARK_HOME": str(home), "PYTHONPATH": path}


def _installed_by_conda(python: Path) -> None:
    """Mark every package as conda does: without RECORD's owner pip, and from a folder."""
    source = '{"dir_info": {}, "url": "file:///home/conda/feedstock_root"}'
    for info in python.parent.parent.glob("lib/python*/site-packages/*.dist-info"):
        (info / "INSTALLER").write_text("conda\n")
        (info / "direct_url.json").write_text(source)
        (info / "REQUESTED").unlink(missing_ok=True)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in before.items()
        if after.get(name) != version
    )


def _brought(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    names = ("pyspark", "py4j", "delta-spark", "importlib-metadata")
    return tuple(f"{name} {after[name]}" for name in names if name in after.keys() - before.keys())


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Try the environments; 1 if one is not as it must be."""
    parser = argparse.ArgumentParser(prog="make test-environments", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="default: built from this checkout")
    parser.add_argument("--installers", default="pip,uv")
    parser.add_argument("--only", default="", help="parts of environments' names, with commas")
    parser.add_argument("--python", default="3.11", help="a version, or a path")
    parser.add_argument("--pip", default=shutil.which("pip"))
    parser.add_argument("--uv", default=shutil.which("uv"))
    options = parser.parse_args(arguments)
    if not options.pip or not options.uv:
        raise SystemExit("pip or uv is not on the PATH. Name it: --pip PATH --uv PATH")
    wheel = options.wheel or build("wheel", ROOT, ROOT / "build" / "matrix" / "wheel")
    trial = Trial(wheel, options.pip, options.uv, options.python)
    print(HEADER, flush=True)
    good = True
    for case in cases():
        if any(part in f"{case.name} {case.extra}" for part in options.only.split(",")):
            for installer in options.installers.split(","):
                outcome = trial.outcome(installer, case)
                print(outcome, flush=True)
                good &= outcome.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
