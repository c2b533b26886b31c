"""The rules of the layout, checked by reading the source: import direction, dependencies, bad
constructs."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "gram_platform"

# Five layers, from the bottom to the top: a room imports only from rooms above its own line, and
# beyond the standard library only what stands beside it. A room is a folder of the package.
ROOMS = {
    # science
    "config": ("numpy",),
    "methods": (),
    "planner": (),
    # training
    "corpora": (
        "datasets",
        "huggingface_hub",
        "tokenizers",
        "numpy",
        "pyarrow",
        "zstandard",
        "fsspec",
    ),
    "model": ("torch",),
    "train": ("torch", "numpy"),
    # storage
    "store": ("torch", "numpy", "fsspec", "safetensors"),
    "tracking": ("mlflow", "pandas", "sqlalchemy", "tensorboardX", "wandb"),
    # orchestration: `engine` runs one node, `studies` runs them all and needs what follows
    "engine": ("ray", "grpc", "optuna", "pyarrow", "torch", "numpy", "psutil", "rich"),
    # presentation
    "analysis": ("numpy", "pandas", "scipy", "rich"),
    "paper": ("numpy", "pandas"),
    "pages": ("numpy", "pandas", "plotly", "optuna", "jinja2", "markupsafe"),
    "studies": ("ray", "optuna", "numpy", "pandas", "plotly", "sqlalchemy", "tyro", "rich"),
    # products
    "release": (
        "torch",
        "numpy",
        "pandas",
        "jinja2",
        "transformers",
        "huggingface_hub",
        "lm_eval",
        "tokenizers",
        "starlette",
        "prometheus_client",
        "ray",
    ),
    "cli": ("pandas", "tyro", "rich"),
}
TRAINING_CORE = ("config", "methods", "model", "train", "corpora.packed")
# What executes a node of one rank: modules of these rooms, and these of the engine.
WITHOUT_RAY = ("config", "methods", "model", "store", "train")
WITHOUT_RAY += tuple(
    f"engine.{name}"
    for name in ("devices", "evaluation", "handover", "in_process", "life", "node", "process")
)
NOT_IN_CORE = {library for libraries in ROOMS.values() for library in libraries} - {
    "torch",
    "numpy",
}


@functools.cache
def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def modules_of_the_package() -> set[str]:
    return {module_name(path) for path in python_files(PACKAGE)}


@functools.cache
def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names of everything a file imports, inside functions too; `from a import b`
    gives `a.b`."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def foreign(modules: set[str]) -> set[str]:
    """Top-level names that are neither ours nor the standard library's."""
    return {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {PACKAGE}


def ours(modules: set[str]) -> set[str]:
    """The modules of this package among the names: `gram_platform.config.CORE` is
    `gram_platform.config`."""
    files = modules_of_the_package()
    inside = {name for name in modules if name == PACKAGE or name.startswith(PACKAGE + ".")}
    return {name if name in files else name.rpartition(".")[0] for name in inside}


def test_every_file_has_a_room():
    strays = [
        p.name
        for p in python_files(PACKAGE)
        if room_of(module_name(p)) not in {*ROOMS, "", "__main__"}
    ]
    assert not strays, f"files outside the layout: {strays}"


def test_imports_go_one_way():
    order = {room: line for line, room in enumerate(ROOMS)}
    wrong = []
    for path in python_files(PACKAGE):
        room = room_of(module_name(path))
        if room not in order:  # the package itself; a stranger fails the test above
            continue
        for name in ours(imported_modules(path)):
            target = room_of(name)
            if target not in order:
                continue
            if order[target] > order[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_what_executes_a_node_asks_no_planner():
    """The study has decided: ranks, passes and what the planner counts lie in the node's
    placement."""
    files = python_files(f"{PACKAGE}/train", f"{PACKAGE}/engine")
    wrong = [
        module_name(path)
        for path in files
        if "planner" in map(room_of, ours(imported_modules(path)))
    ]
    assert files
    assert not wrong, wrong


def test_no_import_cycles():
    files = {module_name(path): path for path in python_files(PACKAGE)}
    edges = {}
    for module, path in files.items():
        edges[module] = ours(imported_modules(path)) & (files.keys() - {module, PACKAGE})
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "import cycle: " + " -> ".join([*trail, module])
        if module not in done:
            for target in sorted(edges[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


def test_each_room_imports_only_its_libraries():
    wrong = []
    for path in python_files(PACKAGE):
        allowed = set(ROOMS.get(room_of(module_name(path)), ()))
        extra = foreign(imported_modules(path)) - allowed
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in sorted(extra)]
    assert not wrong, "\n".join(wrong)


def core_files() -> list[Path]:
    """The files of the training core, with the `__init__.py` of the packages that importing them
    runs."""
    names = {f"{PACKAGE}.{name}" for name in TRAINING_CORE}
    packages = {PACKAGE} | {name.rpartition(".")[0] for name in names}
    inside = tuple(name + "." for name in names)
    return [
        p
        for p in python_files(PACKAGE)
        if (m := module_name(p)) in names | packages or m.startswith(inside)
    ]


def test_training_core_needs_torch_and_numpy_only():
    core = {module_name(path) for path in core_files()}
    wrong = []
    for path in core_files():
        modules = imported_modules(path)
        outside = (ours(modules) - core) | (foreign(modules) - {"torch", "numpy"})
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in sorted(outside)]
    assert not wrong, "\n".join(wrong)


def test_a_node_is_executed_where_ray_is_not_installed():
    """Nor MLflow, Optuna, tyro, rich, pandas, pyarrow, datasets, plotly, psutil."""
    names = tuple(f"{PACKAGE}.{name}" for name in WITHOUT_RAY)
    modules = [
        name for name in map(module_name, python_files(PACKAGE)) if f"{name}.".startswith(names)
    ]
    assert {name.split(".")[1] for name in modules} == {name.split(".")[0] for name in WITHOUT_RAY}
    require_imports(modules, NOT_IN_CORE - {"safetensors", "fsspec", "tokenizers"})


def require_imports(modules: list[str], absent: set[str]) -> None:
    """Imports the modules in a process in which the `absent` libraries cannot be imported."""
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import importlib
for module in {modules!r}:
    importlib.import_module(module)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# These read messages of torch and of CUDA.
FOREIGN_MESSAGES = {"gram_platform/engine/devices.py", "gram_platform/engine/process.py"}


def test_nobody_reads_the_text_of_an_error():
    """Errors of ours carry their data: whoever improves a message breaks nothing."""
    readers = ("search", "match", "fullmatch", "findall", "finditer", "split", "sub")
    readers += (
        "startswith",
        "endswith",
        "partition",
        "rpartition",
        "removeprefix",
        "removesuffix",
        "replace",
    )
    found = set()
    for path in python_files(PACKAGE, "experiments"):
        tree = tree_of(path)
        names = {
            "error",
            *(node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)),
        }
        for node in ast.walk(tree):
            is_read = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in readers
            is_asked = isinstance(node, ast.Compare) and any(
                isinstance(one, ast.In) for one in node.ops
            )
            if (is_read or is_asked) and any(is_text_of(names, part) for part in ast.walk(node)):
                found.add(str(path.relative_to(ROOT)))
    assert found == FOREIGN_MESSAGES


def is_text_of(names: set[str | None], node: ast.AST) -> bool:
    """Tells whether a node is `str(NAME)` with one of the names."""
    is_text = (
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1
    )
    return is_text and getattr(node.args[0], "id", "") in names


def test_no_class_or_constant_is_defined_twice():
    """A constant is a public name in capitals; `STUDY` and `SEARCH` are what a file of the library
    defines."""
    places: dict[str, set[str]] = {}
    for path in python_files(PACKAGE):
        for node in tree_of(path).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [
                    target.id
                    for target in targets
                    if isinstance(target, ast.Name) and target.id.isupper()
                ]
            for name in names:
                if not name.startswith("_") and name not in ("STUDY", "SEARCH"):
                    places.setdefault(name, set()).add(module_name(path))
    assert not {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_one_module_prints_and_warns():
    """`config/terminal.py` escapes what commands a terminal; the panel of a study's progress asks
    it too."""
    wrong = []
    for path in python_files(PACKAGE, "dashboards"):
        for node in ast.walk(tree_of(path)):
            text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if text in ("print", "warnings.warn") or text.startswith(
                ("sys.stdout.write", "sys.stderr.write")
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {line.partition(":")[0] for line in wrong} == {"gram_platform/config/terminal.py"}, wrong
    drawing = [
        str(path.relative_to(ROOT))
        for path in python_files(PACKAGE)
        if "rich.console" in path.read_text()
    ]
    drawers = ("analysis/columns.py", "cli/reports.py", "studies/live.py")
    assert drawing == [f"gram_platform/{name}" for name in drawers]


def test_one_function_writes_csv():
    """`analysis.tables.table_csv`: no cell of its tables is a formula."""
    writers = [
        str(path.relative_to(ROOT))
        for path in python_files(PACKAGE)
        if ".to_csv(" in path.read_text()
    ]
    assert writers == ["gram_platform/analysis/tables.py"]


UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
EXECUTING = {"torch.load", "pd.read_pickle", "yaml.load", "eval", "exec"}
SWITCHES = {"allow_pickle", "trust_remote_code", "weights_only"}


def test_nothing_of_a_storage_is_unpickled():
    """One module unpickles: what Ray Tune has written in the folder of this driver's Ray."""
    words, found = (
        re.compile("|".join(UNPICKLING | SWITCHES | {r"\.load\(", r"\beval\(", r"\bexec\("})),
        set(),
    )
    for path in python_files(PACKAGE, "dashboards"):
        if not words.search(path.read_text()):
            continue
        nodes = list(ast.walk(tree_of(path)))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        arguments = {node.arg for node in nodes if isinstance(node, ast.keyword)}
        modules = {name.split(".")[0] for name in imported_modules(path)}
        if modules & UNPICKLING or calls & EXECUTING or arguments & SWITCHES:
            found.add(str(path.relative_to(ROOT)))
    assert found == {"gram_platform/engine/ray_private.py"}
