"""Jars are fetched once, by a real resolver, into a folder that is whole or not there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from txn.errors import SetupError
from txn.machine.jars import S3A_PACKAGES, delta_jars, package_jars
from txn.spark.versions import running_spark

DELTA, SPARK = running_spark().line.delta, running_spark().version
ARTIFACT = running_spark().delta_artifact
FOLDER = f"delta-{DELTA}-spark-{SPARK}"

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
<dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def put(
    repository: Path, group: str, name: str, version_: str, *needs: tuple[str, str, str]
) -> None:
    """A module in a Maven repository on disk."""
    folder = repository.joinpath(*group.split("."), name, version_)
    folder.mkdir(parents=True)
    dependencies = "".join(DEPENDENCY.format(*need) for need in needs)
    pom = POM.format(group=group, name=name, version=version_, dependencies=dependencies)
    (folder / f"{name}-{version_}.pom").write_text(pom, "utf-8")
    (folder / f"{name}-{version_}.jar").write_bytes(b"PK\x05\x06" + bytes(18))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache and a mirror that has Delta and what it needs."""
    repository = tmp_path / "mirror"
    needs = [("io.delta", "delta-storage", DELTA), ("org.apache.hadoop", "hadoop-client-api", "1")]
    put(repository, "io.delta", ARTIFACT, DELTA, *needs)
    put(repository, "io.delta", "delta-storage", DELTA)
    put(repository, "org.apache.hadoop", "hadoop-client-api", "1")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**os.environ, **own, "TXN_JARS": "", "DEFAULT_ARTIFACT_REPOSITORY": repository.as_uri()}


def test_jars_are_fetched_without_what_spark_ships(env: dict[str, str]) -> None:
    """Delta and its own parts are fetched; another Hadoop beside Spark's is not."""
    jars = delta_jars(env)
    assert [jar.name for jar in jars] == [
        f"{ARTIFACT}-{DELTA}.jar",
        f"delta-storage-{DELTA}.jar",
    ]
    assert {jar.parent for jar in jars} == {Path(env["XDG_CACHE_HOME"]) / "txn" / "jars" / FOLDER}


def test_jars_are_fetched_once(env: dict[str, str]) -> None:
    """The second time nothing is asked of anybody."""
    first = delta_jars(env)
    assert delta_jars({**env, "DEFAULT_ARTIFACT_REPOSITORY": "file:///nowhere"}) == first


def test_several_processes_may_fetch_at_once(env: dict[str, str]) -> None:
    """Every one gets the whole folder, and nothing else is left behind."""
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: delta_jars(env), range(3)))
    assert [len(jars) for jars in found] == [2, 2, 2]
    assert os.listdir(found[0][0].parent.parent) == [FOLDER]


def test_txn_jars_names_the_folder(env: dict[str, str], tmp_path: Path) -> None:
    """Jars that were put into `$TXN_JARS` are used as they are."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / f"{ARTIFACT}-{DELTA}.jar").touch()
    assert delta_jars({**env, "TXN_JARS": str(folder)}) == [folder / f"{ARTIFACT}-{DELTA}.jar"]


def test_a_folder_with_other_files_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    """The jar that is missing is named, and nothing is put among foreign files."""
    (tmp_path / "other.jar").touch()
    with pytest.raises(SetupError, match=f"no {ARTIFACT}-{DELTA}.jar"):
        delta_jars({**env, "TXN_JARS": str(tmp_path)})


def test_no_network_is_said_with_what_to_do(env: dict[str, str], tmp_path: Path) -> None:
    """Without cache and without a repository, the ways out are named; nothing half-made stays."""
    nowhere = {**env, "DEFAULT_ARTIFACT_REPOSITORY": (tmp_path / "nowhere").as_uri()}
    with pytest.raises(SetupError, match="could not be fetched.*Connect to the network.*TXN_JARS"):
        delta_jars(nowhere)
    assert os.listdir(Path(env["XDG_CACHE_HOME"]) / "txn" / "jars") == []


def test_a_cache_that_cannot_be_made_is_named(env: dict[str, str], tmp_path: Path) -> None:
    """A file where the cache folder should be: the message has the path and TXN_JARS."""
    (tmp_path / "cache").touch()
    with pytest.raises(SetupError, match=r"cannot be kept in .*cache.*Set TXN_JARS"):
        delta_jars(env)


SOURCE = "org.example:source_2.13:1.0"
TOKENS = f"spark-token-provider-kafka-0-10_{running_spark().scala}"
FIRST_TOKENS = f"{running_spark().minor}.0-preview1"


@pytest.fixture
def packages_env(env: dict[str, str]) -> dict[str, str]:
    """The mirror also has a package that needs a part of Spark which this version was not given."""
    repository = Path(env["DEFAULT_ARTIFACT_REPOSITORY"].removeprefix("file://"))
    spark = "org.apache.spark"
    put(
        repository,
        "org.example",
        "source_2.13",
        "1.0",
        ("org.apache.commons", "commons-extra", "3"),
        ("org.slf4j", "slf4j-api", "1"),
        (spark, TOKENS, SPARK),
    )
    put(repository, "org.apache.commons", "commons-extra", "3")
    put(repository, "org.slf4j", "slf4j-api", "1")
    for version_ in ("3.4.0", FIRST_TOKENS):
        put(repository, spark, TOKENS, version_)
    there = ("3.4.0", FIRST_TOKENS, "99.0")
    versions = "".join(f"<version>{version_}</version>" for version_ in there)
    metadata = f"<metadata><versioning><versions>{versions}</versions></versioning></metadata>"
    (repository / "org/apache/spark" / TOKENS / "maven-metadata.xml").write_text(metadata)
    return env


def test_a_package_comes_with_what_spark_lacks(packages_env: dict[str, str]) -> None:
    """A package and its needs are fetched once, but for what pyspark has, and not among Delta's."""
    jars = package_jars([SOURCE], packages_env)
    assert [jar.name for jar in jars] == [
        "commons-extra-3.jar",
        "source_2.13-1.0.jar",
        f"{TOKENS}-{FIRST_TOKENS}.jar",  # the newest that there is, not above Spark's version
    ]
    assert package_jars([SOURCE], {**packages_env, "DEFAULT_ARTIFACT_REPOSITORY": "x:/"}) == jars
    assert {jar.parent.name for jar in jars} == {f"source_2.13-1.0-spark-{SPARK}"}


def test_a_package_in_txn_jars_is_on_the_class_path_already(
    env: dict[str, str], tmp_path: Path
) -> None:
    """What lies beside Delta's jars in `$TXN_JARS` is neither fetched nor named a second time."""
    (tmp_path / "source_2.13-1.0.jar").touch()
    assert package_jars([SOURCE], {**env, "TXN_JARS": str(tmp_path)}) == []


def test_a_package_with_a_classifier_is_one_jar(env: dict[str, str]) -> None:
    """A shaded jar has in itself what its module needs, and keeps its own name in the cache."""
    repository = Path(env["DEFAULT_ARTIFACT_REPOSITORY"].removeprefix("file://"))
    put(repository, "org.example", "connector", "4.0", ("org.example", "not-there", "1"))
    folder = repository / "org" / "example" / "connector" / "4.0"
    (folder / "connector-4.0.jar").rename(folder / "connector-4.0-shaded.jar")
    (jar,) = package_jars(["org.example:connector:4.0:shaded"], env)
    assert jar.name == "connector-4.0-shaded.jar"
    assert jar.read_bytes().startswith(b"PK")


def test_a_package_that_cannot_be_fetched_is_named(env: dict[str, str], tmp_path: Path) -> None:
    """Without cache and without a repository the package is named, with the ways out."""
    nowhere = {**env, "DEFAULT_ARTIFACT_REPOSITORY": (tmp_path / "nowhere").as_uri()}
    with pytest.raises(SetupError, match=f"{SOURCE} are not on this machine.*TXN_JARS"):
        package_jars([SOURCE], nowhere)


@pytest.mark.parametrize("package", ["source", "org.example:source", "a:b:", "a:b:c:", "a:b:c:d:e"])
def test_what_is_no_package_is_refused(package: str) -> None:
    """Coordinates have three or four parts; the message shows how they are written."""
    with pytest.raises(SetupError, match="is not a Maven package.*group:artifact:version"):
        package_jars([package])


def test_of_amazons_sdk_the_parts_are_fetched(env: dict[str, str], tmp_path: Path) -> None:
    """hadoop-aws comes with what it uses of the SDK, if that can be had, not with the bundle."""
    mirror, sdk, hadoop = tmp_path / "mirror", "software.amazon.awssdk", running_spark().hadoop
    version = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}.get(hadoop)
    parts = ("apache-client", "netty-nio-client", "s3-transfer-manager", "sts")
    put(mirror, "org.apache.hadoop", "hadoop-aws", hadoop, (sdk, "bundle", version or "1"))
    for name in ("bundle", *parts):
        put(mirror, sdk, name, version or "1")
    found = [jar.name for jar in package_jars(S3A_PACKAGES, env)]
    needed = [f"{name}-{version}.jar" for name in parts] if version else ["bundle-1.jar"]
    assert found == sorted([f"hadoop-aws-{hadoop}.jar", *needed])
