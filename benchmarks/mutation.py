"""Does a test notice when a rule of the pure core is broken?

    python benchmarks/mutation.py                    # everything; the scores, and who survived
    python benchmarks/mutation.py gate --jobs 2      # one module
    python benchmarks/mutation.py gate --quick       # by tests of milliseconds alone
    python benchmarks/mutation.py pacer --only 17    # one mutant: its tests' own output

A mutant is the module with one small thing changed: a comparison, an ``and``, a number, a sign,
``min`` for ``max``, a statement left out. Its module's unit tests run in a process of their own,
the quickest first, until one of them fails; a test that needs much more CPU than on the module as
it is counts as failed. Left alone are docstrings, ``__repr__``, ``__slots__``, annotations and
texts. A survivor is explained if ``docs/robustness.md`` has it in its table; it is one all the
same in the score. Exit status 1 if a module has less than ``--least`` per cent.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scrapy_hostgate"
EXPLAINED = ROOT / "docs" / "robustness.md"
TESTS = {
    "semaphore": ("semaphore", "interleavings"),
    "controller": ("controller", "gate", "saved", "law_simulation"),
    "pacer": ("pacer", "gate", "interleavings", "saved"),
    "interval": ("interval", "pacer", "saved"),
    "gate": ("gate", "interleavings", "registry", "saved", "dispatch"),
}
QUICK_S = 0.05
STUCK = 4, 3.0
"""A test is stuck that takes so many times its usual CPU seconds, and so many seconds more."""
BOUNDARY = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    number: int
    where: str
    line: int
    what: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.where}:{self.line}  {self.what}"


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Every small change of one node."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1:
        kind = type(new.ops[0])
        for table in (BOUNDARY, OPPOSITE):
            if kind in table:
                other = copy.deepcopy(new)
                other.ops = [table[kind]()]
                yield other
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield new.operand
    elif isinstance(new, (ast.BinOp, ast.AugAssign)) and type(new.op) in ARITHMETIC:
        new.op = ARITHMETIC[type(new.op)]()
        yield new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
        yield new
    elif isinstance(new, ast.Constant) and isinstance(new.value, (int, float)):
        new.value += 1
        yield new
    elif isinstance(new, ast.Call) and isinstance(new.func, ast.Name):
        if new.func.id in ("min", "max"):
            new.func.id = {"min": "max", "max": "min"}[new.func.id]
            yield new
    elif isinstance(new, (ast.If, ast.IfExp, ast.While)) and isinstance(
        new.test, (ast.Name, ast.Attribute, ast.Call)
    ):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
    if (
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (
            isinstance(node, ast.Assign)
            and all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        )
    ):
        yield ast.Pass()


def left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == "__repr__"
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return "__slots__" in names
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id in ("Protocol", "NamedTuple") for base in node.bases
    )


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    tree = ast.parse(source)
    found: list[Mutant] = []

    def visit(node: ast.AST, where: str) -> None:
        if left_alone(node):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            where = f"{where}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if not isinstance(child, ast.AST):
                    continue
                for new in variants(child):
                    add(node, name, index if isinstance(value, list) else None, child, new, where)
                visit(child, where)

    def add(
        parent: ast.AST, name: str, index: int | None, old: ast.AST, new: ast.AST, where: str
    ) -> None:
        def put(node: ast.AST) -> None:
            if index is None:
                setattr(parent, name, node)
            else:
                getattr(parent, name)[index] = node

        # A bare number says nothing about where it stands, all arguments say too much.
        scant = isinstance(old, ast.Constant) and not isinstance(parent, ast.arguments)
        before = first_line(parent if scant else old)
        ast.copy_location(new, old)
        put(new)
        mutated = ast.fix_missing_locations(copy.deepcopy(tree))
        what = f"{before}  ->  {first_line(parent if scant else new)}"
        put(old)
        found.append(Mutant(len(found), where, getattr(old, "lineno", 0), what, mutated))

    visit(tree, "")
    return found


def first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module as its mutant."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.code = compile(tree, f"<mutant of {name}>", "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


class Quickest:
    """A plugin of pytest: the quickest test first, and no more CPU for any than is due to it."""

    def __init__(self, seconds: dict[str, float], quick: bool) -> None:
        self.seconds = seconds
        self.quick = quick

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0.0))
        if self.quick:
            items[:] = [item for item in items if self.seconds[item.nodeid] <= QUICK_S]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.nodeid in self.seconds:
            times, more_s = STUCK
            due_s = time.process_time() + times * self.seconds[item.nodeid] + more_s
            resource.setrlimit(resource.RLIMIT_CPU, (round(due_s), resource.RLIM_INFINITY))


class Stopwatch:
    """A plugin of pytest: writes how long each test took."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        Path(self.path).write_text(json.dumps(self.seconds), encoding="utf-8")


def run_tests(module: str, tree: ast.Module, plugin: object, *, quiet: bool = True) -> int:
    """In a child process: the module's tests on ``tree``; 0 if all of them pass."""
    import hypothesis
    import pytest

    if quiet:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        # Whoever looks at a failure wants it shrunk, the score does not; and a busy machine, which
        # is what the checks of health complain of, is no broken rule.
        hypothesis.settings.register_profile(
            "mutants",
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
            deadline=None,
            derandomize=True,
            database=None,
        )
        hypothesis.settings.load_profile("mutants")
    sys.meta_path.insert(0, Mutated(f"scrapy_hostgate.{module}", tree))
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in TESTS[module]]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    unneeded = ("cacheprovider", "unraisableexception", "threadexception")
    without = [word for name in unneeded for word in ("-p", f"no:{name}")]
    options = ["-x", "-q", "-o", "addopts=", "--assert=plain", *without]
    return int(pytest.main([*options, *files], [plugin]))


def start_tests(module: str, tree: ast.Module, plugin: object) -> int:
    """Run the tests in a fork of this process, which has imported what they import; its id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os._exit(run_tests(module, tree, plugin))
        except BaseException:
            os._exit(1)
    return child


def usual_times(module: str, source: str) -> dict[str, float]:
    """How long each test takes on the module as it is; empty if one fails."""
    with tempfile.NamedTemporaryFile() as file:
        child = start_tests(module, ast.parse(source), Stopwatch(file.name))
        _, status = os.waitpid(child, 0)
        return {} if status else dict(json.load(file))


def survivors(module: str, chosen: list[Mutant], plugin: Quickest, jobs: int) -> list[Mutant]:
    """Those that no test notices."""
    alive: list[Mutant] = []
    running: dict[int, Mutant] = {}
    waiting = list(reversed(chosen))
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[start_tests(module, mutant.tree, plugin)] = mutant
        child, status = os.wait()
        mutant = running.pop(child)
        if os.WIFSIGNALED(status):
            print(f"  stuck: {mutant.number} {module}.{mutant}", flush=True)
        if status == 0:
            alive.append(mutant)
            how = "as explained" if explained(module, mutant) else "survives"
            print(f"  {how}: {mutant.number} {module}.{mutant}", flush=True)
    return alive


def explained(module: str, mutant: Mutant) -> bool:
    """Whether a row of the table says why this one changes nothing."""
    begins, what = f"| `{module}.{mutant.where}`", f"`{mutant.what}`"
    rows = EXPLAINED.read_text(encoding="utf-8").splitlines()
    return any(row.startswith(begins) and what in row for row in rows)


def warm_up() -> None:
    """Import whatever tests import, so that a fork need not; the package itself not for good."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "example_project")]
    sys.dont_write_bytecode = True
    import hypothesis.stateful  # noqa: F401
    import pytest  # noqa: F401

    import scrapy_hostgate.slots  # noqa: F401

    for name in list(sys.modules):
        if name.partition(".")[0] == "scrapy_hostgate":
            del sys.modules[name]
    # A fork's collections of garbage need not look at all that.
    gc.collect()
    gc.freeze()


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("modules", nargs="*", metavar="MODULE")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--every", type=int, default=1, metavar="N", help="every Nth mutant only")
    options.add_argument("--only", type=int, metavar="NUMBER")
    options.add_argument("--quick", action="store_true", help=f"tests below {QUICK_S} s only")
    options.add_argument("--least", type=float, default=95.0, metavar="PERCENT")
    chosen = options.parse_args()
    unknown = set(chosen.modules) - set(TESTS)
    if unknown:
        options.error(f"MODULE must be one of {', '.join(TESTS)}, not {', '.join(unknown)}")
    warm_up()
    table = [
        "| module | mutants | noticed | survivors explained | score |",
        "|---|---|---|---|---|",
    ]
    enough = True
    for module in chosen.modules or TESTS:
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
        every = mutants(source)
        seconds = usual_times(module, source)
        if not seconds:
            print(f"the tests of {module} fail on the module as it is")
            return 2
        plugin = Quickest(seconds, chosen.quick)
        if chosen.only is not None:
            print(f"{module}.{every[chosen.only]}", flush=True)
            return run_tests(module, every[chosen.only].tree, plugin, quiet=False)
        began = time.monotonic()
        some = every[:: chosen.every]
        left = survivors(module, some, plugin, chosen.jobs)
        score = 100 * (1 - len(left) / len(some))
        known = sum(explained(module, mutant) for mutant in left)
        noticed = len(some) - len(left)
        table.append(f"| `{module}` | {len(some)} | {noticed} | {known} | {score:.1f} % |")
        print(f"{module}: {score:.1f} % in {time.monotonic() - began:.0f} s", flush=True)
        enough = enough and score >= chosen.least
    print("", *table, sep="\n")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
