"""The structure of the package: modules import only earlier ones, and light ones stay light."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from ablate.components import CATALOGUE

PACKAGE = Path(__file__).parent.parent / "ablate"
TABLE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
ORDER = re.findall(r"^\| `(\w+)/?` \|", TABLE, re.M)  # a module imports from those above it
# file → a later module that one of its functions imports
LATER = {
    "kinds/transformer.py": "ablate.train.engine",
    "kinds/finetune.py": "ablate.train.finetune",
    "kinds/image.py": "ablate.train.images",
    "sizes.py": "ablate.model",
    "plan/check.py": "ablate.train",
    "plan/starting.py": "ablate.train",
    "train/start.py": "ablate.trained",
}
HEAVY = {
    "torch": ORDER.index("draws"),
    "pandas": ORDER.index("results"),
    "seaborn": ORDER.index("figures"),
    "matplotlib": ORDER.index("figures"),
    "sqlalchemy": ORDER.index("store"),
    "alembic": ORDER.index("store"),
    "scipy": ORDER.index("stats"),
    "optuna": ORDER.index("tune"),
    # never as one is loaded
    **dict.fromkeys(("tensorboard", "mlflow", "sklearn", "wandb"), len(ORDER)),
}


def modules() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != PACKAGE or path.stem not in {"__init__", "__main__"}
    ]


def imported(path: Path, *, only_top: bool = False) -> set[str]:
    """Return names that a file imports, anywhere or only at load time (outside functions)."""
    tree = ast.parse(path.read_text())
    nodes: list[ast.AST] = list(ast.walk(tree))
    if only_top:
        inside = {
            id(node)
            for function in nodes
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(function, ast.If) and ast.unparse(function.test) == "TYPE_CHECKING")
            for node in ast.walk(function)
        }
        nodes = [node for node in nodes if id(node) not in inside]
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= (
                {node.module}
                if node.module != "ablate"
                else {f"ablate.{alias.name}" for alias in node.names}
            )
    return names


@pytest.mark.parametrize(
    ("module", "path"),
    modules(),
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_a_module_imports_only_earlier_modules(module: str, path: Path) -> None:
    assert module in ORDER, (
        f"{module} has no place in the order; give it one here and in CONTRIBUTING.md"
    )
    later = LATER.get(str(path.relative_to(PACKAGE)), "")
    assert later not in imported(path, only_top=True)
    for name in imported(path):
        if name.startswith("ablate.") and name not in ("ablate.__version__", later):
            other = name.split(".")[1]
            assert other in ORDER[: ORDER.index(module) + 1], (
                f"{path.name} imports {name}, which stands after {module}"
            )


@pytest.mark.parametrize(
    ("module", "path"),
    modules(),
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_heavy_libraries_are_imported_only_where_they_are_needed(module: str, path: Path) -> None:
    for name in imported(path, only_top=True):
        root = name.split(".")[0]
        assert ORDER.index(module) >= HEAVY.get(root, 0), (
            f"{path.name} imports {root} as it is loaded"
        )


def test_every_module_has_a_docstring() -> None:
    for _, path in modules():
        if path.stat().st_size:
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|PRAGMA|CREATE|DROP|ALTER|WITH|BEGIN|REPLACE)\b")


def test_only_the_store_speaks_sql() -> None:
    """Outside `ablate/store` no driver, no SQLAlchemy and no statement that is executed.

    SQL that a page prints for its reader is text; a statement of the user goes to `query.run`.
    """
    for module, path in modules():
        if module == "store":
            continue
        for name in imported(path):
            root = name.split(".")[0]
            assert root not in ("sqlite3", "sqlalchemy", "alembic"), f"{path} imports {name}"
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).split(".")[-1]
            assert called != "exec_driver_sql", f"{path}:{node.lineno}"
            statements = [
                part.value
                for argument in node.args
                for part in ast.walk(argument)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            if called in ("execute", "executemany", "run", "read_sql", "read_sql_query", "text"):
                assert not any(map(SQL.match, statements)), f"{path}:{node.lineno}"


def test_no_module_decides_by_the_name_of_a_level() -> None:
    """What a level decides is asked of its component, wherever it is defined."""
    choices = {name for name, row in CATALOGUE.items() if row.choice}
    levels = {level for name in choices for level in CATALOGUE[name].names}

    def factor(node: ast.AST) -> str:
        """The factor that `config.factor` or `fields["factor"]` names, "" for anything else."""
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            name = str(node.slice.value)
        return name if name in choices else ""

    for module, path in modules():
        if module == "components":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(map(factor, (node.left, *node.comparators))):
                constants = {
                    one.value for one in ast.walk(node) if isinstance(one, ast.Constant)
                } & levels
                assert not constants, f"{path.name}:{node.lineno} compares with {constants}"


def test_one_module_prints() -> None:
    """It escapes what acts on a terminal; so does the console in `cli/consoles.py`."""
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        called = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        if path.name not in ("output.py", "__init__.py", "complete.py"):
            assert not called & {"print", "typer.echo", "typer.secho"}, path
        if path.name != "consoles.py":
            assert "rich.console.Console" not in imported_names(path), path


def imported_names(path: Path) -> set[str]:
    """Return what a file imports from modules while it runs: "rich.console.Console"."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count: they hide a circle from Python, not from its readers."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.stem != "__init__"  # which hands on names
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = imported_names(path) | imported(path)
        graph[module] = {name for name in found if name in files} - {module}
    assert list(TopologicalSorter(graph).static_order())
