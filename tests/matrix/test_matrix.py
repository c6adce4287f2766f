"""The matrix meets every Spark, Python and Java, and reports what failed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.environments import Case, Outcome
from tests.matrix.plan import JAVAS, PARTS, PYTHONS, Part, cover, find_javas, product, supported
from tests.matrix.runs import Result, read_programs, read_report
from tests.release.distribution import ROOT
from txn.spark.versions import LINES

SPARKS = [line.newest for line in LINES.values()]


def test_every_spark_meets_every_python_and_every_java_that_it_supports() -> None:
    """In the short matrix as in the full one; a Java that a Spark does not support is not run."""
    for combine in (cover, product):
        cells, refused = supported(combine(SPARKS, PYTHONS, JAVAS))
        pairs = {(cell.spark, cell.java) for cell in cells}
        assert pairs == {(one.newest, java) for one in LINES.values() for java in one.javas}
        assert {(cell.spark, cell.python) for cell in cells} == {
            (spark, python) for spark in SPARKS for python in PYTHONS
        }
        assert {(cell.spark, cell.java) for cell in refused}.isdisjoint(pairs)
    assert len(product(SPARKS, PYTHONS, JAVAS)) == len(SPARKS) * len(PYTHONS) * len(JAVAS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_names_tests_that_exist(part: Part) -> None:
    """A test file that has moved is missed here, and not after an hour."""
    assert [path for path in (*part.quick, *part.more) if not (ROOT / path).exists()] == []
    assert part.quick or part.seeds != (0, 0)


def test_a_java_is_known_by_its_release_file(tmp_path: Path) -> None:
    """The first folder of a major version counts; one without a program is none."""
    for name, version in (("a", "21.0.8"), ("b", "21.0.1"), ("c", "25.0.3")):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        (tmp_path / name / "bin" / "java").touch()
    (tmp_path / "c" / "bin" / "java").unlink()
    javas = find_javas([tmp_path / name for name in "abc"])
    assert javas[21] == tmp_path / "a"
    assert javas.get(25) != tmp_path / "c"


def test_what_failed_is_named(tmp_path: Path) -> None:
    """Tests and random programs that failed are counted and named; nothing run is no success."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="one"/>'
        '<testcase classname="a" name="two"><failure/></testcase>'
        '<testcase classname="a" name="three"><error/></testcase></testsuite></testsuites>'
    )
    assert read_report(report) == (1, ("a.two", "a.three"))
    log = 'seed 7 (1.0 s) rows: they differ\n{"equal": 4, "rows": 1} 5 programs, 9 s, 1.8 s each\n'
    assert read_programs(log) == (4, ("seed 7",))
    (cell,) = product(["4.2.0"], ["3.11"], [17])
    assert Result(cell, "core", 3, (), 1).is_good
    assert not Result(cell, "core", 0, (), 1).is_good
    assert not Result(cell, "core", 3, ("a.two",), 1).is_good
    assert str(Result(cell, "core", 3, ("a.two",), 1)).splitlines()[1].strip() == "a.two"


@pytest.mark.parametrize(
    ("case", "after", "changed", "brought", "error", "is_good"),
    [
        (Case("x", spark="4.1.4"), "4.1.4", (), (), "", True),
        (Case("x", spark="4.2"), "4.2.1", (), ("pyspark 4.2.1",), "", True),
        (Case("x", spark="4.1.4"), "4.2.0", ("pyspark 4.1.4 -> 4.2.0",), (), "", False),
        (Case("x", spark="4.1.4"), "4.1.4", ("numpy 1 -> 2",), (), "", False),
        (Case("x", spark="4.1.4"), "4.1.4", (), (), "no resolution", False),
        (Case("x"), "none", (), (), "", True),
        (Case("x"), "4.2.0", (), ("pyspark 4.2.0",), "", False),
        (Case("x", spark_home="3.5.9", spark="3.5.9"), "3.5.9", (), ("pyspark 4.2.0",), "", False),
        (Case("x", refused=True), "none", (), (), "no resolution", True),
        (Case("x", refused=True), "none", (), (), "", False),
    ],
)
def test_an_environment_is_good_if_its_spark_stays(
    case: Case,
    after: str,
    changed: tuple[str, ...],
    brought: tuple[str, ...],
    error: str,
    is_good: bool,
) -> None:
    """Nothing that was there changes, and no second Spark comes."""
    assert Outcome("pip", case, "", after, changed, brought, error, 1).is_good == is_good
