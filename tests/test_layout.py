"""Rules of the project that a machine can check: layout, imports, sizes, docstrings."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.for_each import for_each

ROOT = Path(__file__).parent.parent
PACKAGES = ("txn", "spouts", "committers")
SOURCES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PAGES = [
    *(page for folder in (".", "docs", "txn") for page in sorted((ROOT / folder).glob("*.md")))
]
PLUGIN_MAY_IMPORT = (
    "txn.interfaces",
    "txn.changes",
    "txn.attempts",
    "txn.errors",
    "txn.storage",
    "txn.delta",
    "txn.spark",
)
MAX_FUNCTION_LINES = 70
FORBIDDEN_NAMES = {"pickle", "_jvm", "_jsc", "rdd", "toPandas", "NotImplementedError", "eval"}
IN_THE_JVM = "txn/spark/jvm.py"
"""The one module that may use the JVM: `_jvm`, `_jsc`, and the number of an RDD."""
IN_FRAMES = "committers/reading/frames.py"
"""The one module that knows pandas: it gives frames to those who have it."""
LISTENERS = {"ProcessingPhases"}
"""Classes that are called through a protocol of the module which calls them (`Outcomes`)."""
TAKE_NO_TYPE = {"logging.LoggerAdapter", "logging.StreamHandler"}
"""Classes that are generic for mypy, and at run time since Python 3.11 only."""
FORBIDDEN_MARKS = {"skip", "skipif", "xfail"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, type checking included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def expects(node: ast.AST) -> bool:
    """Whether something in it is asserted, or has to be raised."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert):
            return True
        match inner:
            case ast.Attribute(value=ast.Name(id="pytest"), attr="raises" | "warns" | "fail"):
                return True
    return False


def called(node: ast.AST) -> Iterator[str]:
    """The bare names of what is called in it."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name


MAKE_THREADS = ("txn/storage/asking.py", "txn/cli/running/driver.py", "txn/testing/")


@for_each(SOURCES, relative)
def test_requests_side_by_side_keep_the_ids_of_their_batch(path: Path) -> None:
    """What threads log has the batch's ids only if they take them over, as `in_parallel` does."""
    if not relative(path).startswith(MAKE_THREADS):
        assert "ThreadPoolExecutor" not in path.read_text()


@for_each(TESTS, relative)
def test_every_test_expects_something(path: Path) -> None:
    """A test asserts, or says what is raised, or calls a check of the tests that does so itself.

    A check is called `assert_...`, `check...` or `judge`, and is written in the test's own file or
    in a module of the tests that this one imports.
    """
    own = [ROOT / f"{name.replace('.', '/')}.py" for name in imports(path)]
    near = [path, *(file for file in own if file.is_file() and file.is_relative_to(ROOT / "tests"))]
    checks = {
        function.name
        for file in near
        for function in functions(file)
        if function.name.startswith(("assert_", "check", "judge")) and expects(function)
    }
    silent = [
        function.name
        for function in functions(path)
        if function.name.startswith("test_")
        and not expects(function)
        and not checks & set(called(function))
    ]
    assert silent == []


def test_importing_txn_is_light() -> None:
    """`import txn` and the names it exports load neither pyspark nor kazoo."""
    code = (
        "import sys, txn, txn.acker, txn.protocol.coordinator, txn.interfaces\n"
        "[getattr(txn, name) for name in txn.__all__]\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'pyspark', 'kazoo', 'pandas'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (said.stderr, said.stdout) == ("", "[]\n")


def test_plugins_know_only_the_contracts() -> None:
    """Spouts and committers import six packages of `txn`, and not each other."""
    found = []
    for path in SOURCES:
        package = module_name(path).partition(".")[0]
        if package == "txn":
            continue
        for name in imports(path):
            top = name.partition(".")[0]
            allowed = any(f"{name}.".startswith(f"{may}.") for may in PLUGIN_MAY_IMPORT)
            if top in PACKAGES and top != package and not allowed:
                found.append(f"{relative(path)}: {name}")
    assert found == []


def test_acker_and_coordinator_are_pure() -> None:
    """The protocol has no clock, no threads, no randomness, no Spark and no ZooKeeper in it."""
    impure = {
        "pyspark",
        "kazoo",
        "time",
        "datetime",
        "random",
        "secrets",
        "uuid",
        "threading",
        "os",
    }
    found = [
        f"{relative(path)}: {name}"
        for path in SOURCES
        if path.stem in {"acker", "attempts"} or path.parent.name == "protocol"
        for name in imports(path)
        if name.partition(".")[0] in impure
    ]
    assert found == []


@for_each(SOURCES, relative)
def test_all_is_true(path: Path) -> None:
    """`__all__` names nothing twice and nothing that is not there."""
    module = importlib.import_module(module_name(path))
    listed = list(getattr(module, "__all__", ()))
    assert [name for name in listed if not hasattr(module, name)] == []
    assert len(set(listed)) == len(listed)


@for_each(SOURCES, relative)
def test_what_is_imported_is_public(path: Path) -> None:
    """A module takes from another one only what stands in that one's `__all__`."""
    found = []
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.partition(".")[0] not in PACKAGES:
            continue
        home = importlib.import_module(node.module)
        listed = getattr(home, "__all__", ())
        is_package = hasattr(home, "__path__")
        names = [alias.name for alias in node.names if alias.name not in listed]
        found += [f"{node.module}.{name}" for name in names if not is_package]
    assert found == []


@for_each(SOURCES, relative)
def test_functions_stay_short(path: Path) -> None:
    """No function has more than 70 lines."""
    long = {
        node.name: length
        for node in functions(path)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


@for_each(SOURCES, relative)
def test_modules_say_what_they_are(path: Path) -> None:
    """Every module has a docstring, and postponed annotations where it has code."""
    parsed = tree(path)
    assert ast.get_docstring(parsed)
    if len(parsed.body) > 1:
        assert "__future__" in set(imports(path))


@for_each(SOURCES, relative)
def test_classes_can_be_made_on_python_3_10(path: Path) -> None:
    """No class inherits from one that takes a type in brackets only since Python 3.11."""
    bases = {
        ast.unparse(base.value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Subscript)
    }
    assert not bases & TAKE_NO_TYPE


@for_each(SOURCES, relative)
def test_forbidden_ways_out(path: Path) -> None:
    """No pickle, eval, RDD, JVM handle or pandas, and nothing left to be implemented."""
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    tops = {name.partition(".")[0] for name in imports(path)}
    # pandas stays out of all that runs batches; one method gives its frames to those who have it.
    allowed = {IN_THE_JVM: {"_jsc", "_jvm", "rdd"}, IN_FRAMES: {"pandas"}}.get(
        relative(path), set()
    )
    assert (used | tops) & (FORBIDDEN_NAMES | {"pandas"}) == allowed


@for_each(TESTS, relative)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """Every test has a docstring; no test is skipped, expected to fail, or built on a mock."""
    silent = [
        node.name
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    marked = [
        ast.unparse(node)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr in FORBIDDEN_MARKS
        and ast.unparse(node.value) in {"pytest", "pytest.mark"}
    ]
    mocks = [name for name in imports(path) if name.startswith("unittest")]
    assert (silent, marked, mocks) == ([], [], [])


def batch_way() -> Iterator[tuple[int, str, str, str]]:
    """The list in docs/architecture.md: indentation, file of the engine, class, method."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    block = text.partition("## One batch's way\n")[2].split("```")[1]
    for line in block.strip("\n").splitlines():
        found = re.match(r"( *)(\w+)\.py +(\w+)\.(\w+)\b", line)
        assert found, f"not a file and a function: {line}"
        yield len(found[1]), found[2], found[3], found[4]


def engine_module(name: str) -> Path:
    """The file of a module of the engine."""
    (path,) = (ROOT / "txn" / "engine").rglob(f"{name}.py")
    return path


def methods(module: str, of: str) -> dict[str, ast.FunctionDef]:
    """The methods of a class of the engine, by name."""
    for node in tree(engine_module(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == of:
            return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    pytest.fail(f"{module}.py has no class {of}")


def named_from(module: str, of: str, method: str) -> set[str]:
    """What a method names as an attribute, also by way of other methods of its class."""
    own, names, left = methods(module, of), set[str](), [method]
    while left:
        for node in ast.walk(own[left.pop()]):
            if isinstance(node, ast.Attribute) and node.attr not in names:
                names.add(node.attr)
                left += [node.attr] if node.attr in own else []
    return names


def known_to(module: str) -> set[str]:
    """The modules of the engine that one imports, and those that these hand to it."""
    own = {name for name in imports(engine_module(module)) if name.startswith("txn.engine.")}
    handed = {name for one in own for name in imports(ROOT / f"{one.replace('.', '/')}.py")}
    return {name.rpartition(".")[2] for name in own | handed}


def test_a_batch_goes_the_way_that_is_written_down() -> None:
    """Each function of the list is there; the one above it names it, and may know its module."""
    callers: list[tuple[int, str, str, str]] = []
    for depth, module, of, method in batch_way():
        assert method in methods(module, of), f"{module}.py: {of}.{method}"
        while callers and callers[-1][0] >= depth:
            callers.pop()
        if callers:
            _, *above = callers[-1]
            assert module in known_to(above[0]) or of in LISTENERS, (above, module)
            assert method in named_from(*above), (above, method)
        callers.append((depth, module, of, method))


def test_a_batchs_way_is_that_of_the_orders() -> None:
    """The list begins a new step with each order of a batch's life, in the pipeline's own order."""
    begin = methods("pipeline", "Pipeline")["__init__"]
    orders = next(
        node.value
        for node in ast.walk(begin)
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and node.value.keys
    )
    assert isinstance(orders, ast.Dict)
    carried_out = [value.attr for value in orders.values if isinstance(value, ast.Attribute)]
    steps = [method for depth, *_, method in batch_way() if depth == 0]
    assert steps == carried_out[: len(steps)]
    assert len(steps) == 6


def test_tests_have_no_packages() -> None:
    """Tests are imported by path: an `__init__.py` among them would change that."""
    assert [relative(p) for p in (ROOT / "tests").rglob("__init__.py")] == []


@for_each(PAGES, relative)
def test_pages_name_what_is_there(path: Path) -> None:
    """Every file of ours that a page names exists, and so does every page that it links to."""
    text = path.read_text("utf-8")
    named = re.findall(r"`((?:txn|committers|spouts|examples|tests|docs)/[\w./*-]*)", text)
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [name for name in named if not any(ROOT.glob(name))]
    missing += [name for name in linked if not (path.parent / name).exists()]
    assert missing == []


@for_each(PAGES, relative)
def test_links_lead_to_headings(path: Path) -> None:
    """Every `#heading` that a link names is a heading of its page."""
    lost = []
    for name, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text("utf-8")):
        page = path.parent / name if name else path
        titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
        slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        if heading not in slugs:
            lost.append(f"{name}#{heading}")
    assert lost == []
