"""Does a test notice when a rule of the pure core is broken?

    python benchmarks/mutation.py                    # everything; the score, and who survived
    python benchmarks/mutation.py gate --jobs 2      # one module
    python benchmarks/mutation.py pacer --only 17    # one mutant: its tests' own output

A mutant is the module with one small thing changed: a comparison, an ``and``, a number, a sign,
``min`` for ``max``, a statement left out. Its module's unit tests run in a process of their own
until the first of them fails; a mutant that needs more than 60 s of CPU is stuck and counts as
noticed. Left alone are docstrings, ``__repr__``, ``__slots__``, annotations and texts. Survivors
that are listed in ``docs/robustness.md`` (by module, function and change) are explained there.
Exit status 1 below ``--least`` per cent.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scrapy_hostgate"
TESTS = {
    "semaphore": ("semaphore", "interleavings"),
    "controller": ("controller", "gate", "saved", "law_simulation"),
    "pacer": ("pacer", "gate", "interleavings", "saved"),
    "interval": ("interval", "pacer", "saved"),
    "gate": ("gate", "interleavings", "registry", "saved", "dispatch"),
}
CPU_S = 60
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
        ast.copy_location(new, old)
        field = getattr(parent, name)
        if index is None:
            setattr(parent, name, new)
        else:
            field[index] = new
        mutated = ast.fix_missing_locations(copy.deepcopy(tree))
        if index is None:
            setattr(parent, name, old)
        else:
            field[index] = old
        line = getattr(old, "lineno", 0)
        what = f"{first_line(old)}  ->  {first_line(new)}"
        found.append(Mutant(len(found), where, line, what, mutated))

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


def run_tests(module: str, mutant: Mutant, *, quiet: bool = True) -> int:
    """In a child process: the module's tests on the mutant; 0 if all of them pass."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    if quiet:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    sys.meta_path.insert(0, Mutated(f"scrapy_hostgate.{module}", mutant.tree))
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in TESTS[module]]
    plugins = ["-p", "no:twisted", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options = ["-x", "-q", "-o", "addopts=", "--assert=plain", "--hypothesis-seed=1", *plugins]
    return int(pytest.main([*options, *files]))


def survivors(module: str, chosen: list[Mutant], jobs: int) -> list[Mutant]:
    """Those that no test notices. Each is tried in a fork of this process, which is warm."""
    alive: list[Mutant] = []
    running: dict[int, Mutant] = {}
    waiting = list(reversed(chosen))
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                try:
                    os._exit(run_tests(module, mutant))
                except BaseException:
                    os._exit(1)
            running[child] = mutant
        child, status = os.wait()
        mutant = running.pop(child)
        if status == 0:
            alive.append(mutant)
        if status == 0 and mutant.number >= 0:
            print(f"  survives: {module}.{mutant.where}:{mutant.line}  {mutant.what}", flush=True)
    return sorted(alive, key=lambda one: one.number)


def warm_up() -> None:
    """Import what tests import, but nothing of the package."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "example_project")]
    sys.dont_write_bytecode = True
    import http_sf  # noqa: F401
    import hypothesis.stateful
    import hypothesis.strategies  # noqa: F401
    import pytest  # noqa: F401
    import scrapy  # noqa: F401
    import twisted.python.log  # noqa: F401

    assert not any(name.startswith("scrapy_hostgate") for name in sys.modules)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("modules", nargs="*", metavar="MODULE")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--every", type=int, default=1, metavar="N", help="every Nth mutant only")
    options.add_argument("--only", type=int, metavar="NUMBER")
    options.add_argument("--least", type=float, default=95.0, metavar="PERCENT")
    chosen = options.parse_args()
    unknown = set(chosen.modules) - set(TESTS)
    if unknown:
        options.error(f"MODULE must be one of {', '.join(TESTS)}, not {', '.join(unknown)}")
    warm_up()
    tried = alive = 0
    for module in chosen.modules or TESTS:
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
        every = mutants(source)
        unchanged = Mutant(-1, "", 0, "", ast.parse(source))
        if not survivors(module, [unchanged], 1):
            print(f"the tests of {module} fail on the module as it is")
            return 2
        if chosen.only is not None:
            mutant = every[chosen.only]
            print(f"{module}.{mutant.where}:{mutant.line}  {mutant.what}", flush=True)
            return run_tests(module, mutant, quiet=False)
        began = time.monotonic()
        some = every[:: chosen.every]
        left = survivors(module, some, chosen.jobs)
        tried, alive = tried + len(some), alive + len(left)
        print(
            f"{module}: {len(some) - len(left)} of {len(some)} noticed, "
            f"{100 * (1 - len(left) / len(some)):.1f} %, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    score = 100 * (1 - alive / tried)
    print(f"{tried - alive} of {tried} mutants noticed: {score:.1f} %")
    return 0 if score >= chosen.least else 1


if __name__ == "__main__":
    sys.exit(main())
