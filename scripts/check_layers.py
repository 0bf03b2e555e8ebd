"""The rules of the source tree that no compiler or linter checks. `make check` and a test run it.

 1. Folders of csrc/ are layers: an include never points up, and a named file exists.
 2. torch is included in csrc/torch only, pybind11 in csrc/bindings and csrc/torch only.
 3. The environment is read in csrc/base/config.cc only; Python asks the `_core` module.
 4. Files have at most 800 lines, functions at most 70, C++ lines at most 100 columns.
 5. dmlcomm/lab does not import torch, nor does dmlcomm/ps but for its files that are about torch;
    netlink is spoken by the holder of a lab and the process of a switch only.
 6. Folders and top-level modules of dmlcomm/ are layers: an import names what stands above it in
    MAY_IMPORT only, also where it is written into a function, and files import each other in no
    circle.
 7. Pages of the architecture name every file of csrc/ and dmlcomm/.
 8. Nothing names a path of somebody's machine, and nothing is left to be done later.

Prints one line per offence, `file:line: what and why`, and fails if there is any.
"""

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100

CORE = ["base", "memory", "kernels", "topology", "schedule", "transport", "engine"]
# Folder of csrc/ -> folders that it may include, besides itself.
MAY_INCLUDE = {
    "base": [],
    "memory": ["base"],
    "kernels": ["base"],
    "topology": ["base"],
    "sim": ["base"],
    "schedule": ["base", "topology"],
    "transport": ["base", "memory", "kernels", "topology"],
    "engine": CORE,
    "device": CORE,
    "ps": CORE,
    "proxy": [*CORE, "ps"],
    "bindings": [*CORE, "proxy", "ps", "sim"],
    "torch": [*CORE, "device", "ps"],
    "tests": [*CORE, "device", "proxy", "ps", "sim"],
}
# Foreign header prefix -> folders of csrc/ that may include it.
FOREIGN_HEADERS = {
    "torch/": ["torch"],
    "ATen/": ["torch"],
    "c10/": ["torch"],
    "pybind11/": ["bindings", "torch"],
    "Python.h": ["bindings", "torch"],
}
# Python files of the package that touch os.environ -> why they must.
ENVIRONMENT_EXCEPTIONS = {
    "dmlcomm/_shell.py": "what is started inherits the caller's, whatever is in it",
    "dmlcomm/backends/launched.py": "the variables of launchers, as torch reads them",
}

# Folder or top-level module of dmlcomm/ -> those that it may import, besides itself: each stands
# above. A folder that is not here belongs to the one that holds it.
BASE = ["_core", "errors", "lazy", "log", "rail", "units"]
PS_SHARED = ["ps/_proto", "ps/description", "ps/pairing", "ps/protocol", "ps/tls", "ps/tree"]
MAY_IMPORT: dict[str, list[str]] = {
    "_core": [],
    "_c10d": [],
    "_shell": [],
    "lazy": [],
    "errors": ["lazy"],
    "log": ["_core"],
    "rail": [],
    "units": [],
    "bml": ["rail"],
    "hooks": [*BASE, "_c10d"],
    "prio": [*BASE, "hooks"],
    "network": [*BASE, "bml"],
    "planning": [*BASE, "_c10d", "_shell", "bml", "network"],
    "topology": [*BASE, "bml"],
    "lab": [*BASE, "_shell", "topology"],
    "sim": ["_core"],
    "simulate": [*BASE, "_shell", "planning", "sim", "topology"],
    "psnet": [*BASE, "_shell", "lab", "network", "planning", "topology"],
    "regroup": [*BASE, "_shell", "sim", "simulate"],
    "strategy": [*BASE, "_shell", "planning", "simulate"],
    "prio/switch": [*BASE, "_shell", "lab", "topology"],
    **{module: [*BASE, "ps/_proto"] for module in PS_SHARED},
    "ps/server": [*BASE, *PS_SHARED, "network"],
    "ps/worker": [*BASE, *PS_SHARED, "network", "prio"],
    "ps": [*BASE, *PS_SHARED, "_shell", "planning", "ps/server", "ps/worker"],
    "proxy": [*BASE, *PS_SHARED, "_shell", "network", "planning", "ps/server", "ps/worker"],
    "backends": [*BASE, "_c10d", "bml", "network", "planning", "prio", "ps/worker"],
    "doctor": [*BASE, "backends", "bml", "network"],
    "inspection": BASE,
    "inspect_command": [*BASE, "_shell", "inspection"],
    "doctor_command": ["_shell", "doctor", "errors", "planning"],
    "cli": [
        *("_shell", "doctor", "doctor_command", "inspect_command", "lab", "planning"),
        *("prio/switch", "proxy", "ps", "psnet", "regroup", "simulate", "strategy"),
    ],
    "__init__": ["backends", "errors", "hooks", "lab", "lazy", "prio", "ps", "rail", "sim"],
    "__main__": ["cli"],
}

# Files of dmlcomm/ps/worker that import torch.
ABOUT_TORCH = ["census", "hook", "optimizer", "torch_tensors"]
# Files of dmlcomm/lab that make the kernel's networks.
ABOUT_NETLINK = ["loss", "neighbours", "network", "shaping"]
# Files of dmlcomm/prio/switch that change the ports of a bridge.
ABOUT_PORTS = ["daemon", "filters", "port", "queues"]
# Module that the files of a folder must do without, and files of it that may have it. Labs and
# parameter servers start in a fraction of a second, and one process speaks netlink.
RESTRICTED_IMPORTS = [
    ("torch", "dmlcomm/lab/", []),
    ("torch", "dmlcomm/topology/", []),
    ("torch", "dmlcomm/ps/", [f"ps/worker/{name}.py" for name in ABOUT_TORCH]),
    (
        "pyroute2",
        "dmlcomm/",
        [f"lab/{name}.py" for name in ABOUT_NETLINK]
        + [f"prio/switch/{name}.py" for name in ABOUT_PORTS],
    ),
]

IMPORT = re.compile(r"^\s*(?:from|import)\s+(\w+)")
# A module that is imported later, by its name: "dmlcomm.ps.commands:app".
MODULE_NAME = re.compile(r"dmlcomm(?:\.\w+)+(?::\w+)?")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NOT_IN_CODE = re.compile(
    r"(?P<path>(?<![\w.])/(?:work|root|home|Users)/)"
    r"|(?P<later>\b(?:TODO|FIXME|XXX)\b)"
)
# Pages that say what each file is for.
ARCHITECTURE = ("docs/architecture.md", "docs/architecture/")
# A name in them.
QUOTED = re.compile(r"`([^`\n]+)`")
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")


@dataclass(frozen=True)
class Offence:
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def source_files() -> list[str]:
    """Paths of what is tracked or about to be, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in sorted(set(listing.stdout.split("\n"))) if (ROOT / path).is_file()]


def check_includes(path: str, lines: list[str]) -> Iterator[Offence]:
    folder = path.split("/")[1]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        quote, header = match.groups()
        for prefix, allowed in FOREIGN_HEADERS.items():
            if quote == "<" and header.startswith(prefix) and folder not in allowed:
                yield Offence(path, number, f"<{header}> belongs in csrc/{allowed[0]} only")
        if quote == "<":
            continue
        target = header.split("/")[0]
        if not (ROOT / "csrc" / header).is_file():
            yield Offence(path, number, f'"{header}" is not a file below csrc/')
        elif target != folder and target not in MAY_INCLUDE[folder]:
            yield Offence(path, number, f"{folder} must not include {target}: it is not below")


def check_imports(path: str, lines: list[str]) -> Iterator[Offence]:
    for number, line in enumerate(lines, 1):
        match = IMPORT.match(line)
        for module, folder, allowed in RESTRICTED_IMPORTS:
            is_here = match is not None and match[1] == module and path.startswith(folder)
            if is_here and path.removeprefix("dmlcomm/") not in allowed:
                yield Offence(path, number, f"{module} is not for this file")


def imported_modules(text: str) -> Iterator[tuple[str, int]]:
    """(module of dmlcomm, line) of every import, wherever it stands, and of names of modules."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value.partition(":")[0]] if MODULE_NAME.fullmatch(node.value) else []
        for name in names:
            if name.startswith("dmlcomm."):
                yield name.removeprefix("dmlcomm."), node.lineno


def layer_of(module: str) -> str:
    """The entry of MAY_IMPORT for a module, as "ps.server.models": the longest that begins it."""
    parts = module.split(".")
    names = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in MAY_IMPORT), parts[0])


def check_layer_imports(path: str, text: str) -> Iterator[Offence]:
    own = layer_of(module_of(path))
    if own not in MAY_IMPORT:
        yield Offence(path, 1, f"{own} is not in MAY_IMPORT: which layer is it?")
        return
    for module, line in imported_modules(text):
        target = layer_of(module)
        if target != own and target not in MAY_IMPORT[own]:
            yield Offence(path, line, f"{own} must not import {target}: see MAY_IMPORT")


def module_of(path: str) -> str:
    """ "dmlcomm/ps/client.py" -> "ps.client"; "dmlcomm/ps/__init__.py" -> "ps"."""
    parts = path.removeprefix("dmlcomm/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def check_circles(text_of: dict[str, str]) -> Iterator[Offence]:
    """Files of dmlcomm/ that import each other, by path and text."""
    path_of = {module_of(path): path for path in text_of}
    edges: dict[str, list[str]] = {}
    for module, path in path_of.items():
        names = [name for name, _ in imported_modules(text_of[path])]
        # "ps.client.Client" is a class in ps.client.
        found = [name if name in path_of else name.rpartition(".")[0] for name in names]
        edges[module] = [name for name in found if name in path_of and name != module]
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> Iterator[Offence]:
        if module in trail:
            circle = " -> ".join([*trail[trail.index(module) :], module])
            yield Offence(path_of[module], 1, f"files import each other: {circle}")
        elif module not in done:
            for target in edges[module]:
                yield from visit(target, [*trail, module])
            done.add(module)

    for module in edges:
        yield from visit(module, [])


def check_named(paths: list[str], pages: str) -> Iterator[Offence]:
    """Files that no page names in `backticks`: as lane_set, tcp/lane_set.h, LaneSet, or *_set."""
    names = {name for text in QUOTED.findall(pages) for name in re.findall(r"[\w*]+", text)}
    globs = [name for name in names - {"*"} if "*" in name]
    seen = {"__init__", "__main__"}
    for path in paths:
        stem, _, suffix = path.split("/")[-1].rpartition(".")
        is_source = path.startswith(("csrc/", "dmlcomm/")) and suffix in ("h", "cc", "py")
        if not is_source or path.startswith("csrc/tests/") or stem in seen:
            continue
        seen.add(stem)
        main_class = "".join(part.capitalize() for part in stem.split("_"))
        if not names & {stem, main_class} and not any(fnmatch.fnmatch(stem, one) for one in globs):
            yield Offence(path, 1, f"no page of {ARCHITECTURE[0]} names it: what is it for?")


def check_environment(path: str, lines: list[str]) -> Iterator[Offence]:
    if path.startswith("csrc/") and path != "csrc/base/config.cc":
        pattern, where = r"\bgetenv\b", "csrc/base/config.cc"
    elif path.startswith("dmlcomm/") and path not in ENVIRONMENT_EXCEPTIONS:
        pattern, where = r"\bos\.(?:environ|getenv)\b|\bfrom os import .*environ", "dmlcomm._core"
    else:
        return
    for number, line in enumerate(lines, 1):
        code = re.sub(r"//.*|#.*", "", line)
        if re.search(pattern, code):
            yield Offence(path, number, f"the environment is read through {where} only")


def check_text(path: str, lines: list[str]) -> Iterator[Offence]:
    if len(lines) > MAX_FILE_LINES:
        yield Offence(path, len(lines), f"{len(lines)} lines; at most {MAX_FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if path.endswith((".h", ".cc")) and len(line) > MAX_COLUMNS:
            yield Offence(path, number, f"{len(line)} columns; at most {MAX_COLUMNS}")
        match = NOT_IN_CODE.search(line)
        if match is not None and path != "scripts/check_layers.py":
            what = "a path of one machine" if match["path"] else "work left for later"
            yield Offence(path, number, f"{what}: {match.group().strip()}")


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, line, lines) of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(head, line, lines) of every function body, by matching braces.

    A brace opens a scope (namespace, class, ...) or, outside of functions, a function if its head
    has a parameter list. Comments, strings and directives are blanked first, line breaks kept.
    """

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    text = DIRECTIVE.sub(blank, COMMENT_OR_STRING.sub(blank, text))
    head_start = 0
    stack: list[tuple[str, str, int]] = []  # kind, head, line of the brace
    for match in re.finditer(r"[{};]", text):
        line = text.count("\n", 0, match.start()) + 1
        if match.group() == "{":
            head = " ".join(text[head_start : match.start()].split())
            if any(kind == "function" for kind, _, _ in stack):
                kind = "block"
            else:
                kind = "function" if ")" in head and not SCOPE.match(head) else "scope"
            stack.append((kind, head, line))
        elif match.group() == "}" and stack:
            kind, head, first = stack.pop()
            if kind == "function":
                yield head[-60:], first, line - first + 1
        head_start = match.end()


def check_functions(path: str, text: str) -> Iterator[Offence]:
    functions = python_functions(text) if path.endswith(".py") else cpp_functions(text)
    for name, line, length in functions:
        if length > MAX_FUNCTION_LINES:
            yield Offence(path, line, f"{name}: {length} lines; at most {MAX_FUNCTION_LINES}")


def check_file(path: str) -> Iterator[Offence]:
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    is_cpp = path.endswith((".h", ".cc"))
    if is_cpp and path.startswith("csrc/"):
        yield from check_includes(path, lines)
    if path.endswith(".py"):
        yield from check_imports(path, lines)
        if path.startswith("dmlcomm/"):
            yield from check_layer_imports(path, text)
    if is_cpp or path.endswith(".py"):
        yield from check_functions(path, text)
    yield from check_environment(path, lines)
    yield from check_text(path, lines)


def offences() -> list[Offence]:
    suffixes = (".h", ".cc", ".py", ".pyi", ".sh", ".toml", ".md", ".yml", ".cmake", ".txt")
    paths = source_files()
    package = [path for path in paths if path.startswith("dmlcomm/") and path.endswith(".py")]
    pages = [(ROOT / path).read_text() for path in paths if path.startswith(ARCHITECTURE)]
    return [
        offence
        for path in paths
        if path.endswith(suffixes) or path in ("Makefile", ".ci/run")
        for offence in check_file(path)
    ] + [
        *check_circles({path: (ROOT / path).read_text() for path in package}),
        *check_named(paths, "".join(pages)),
    ]


if __name__ == "__main__":
    found = offences()
    print("\n".join(map(str, found)) or "layer rules: nothing to complain about")
    sys.exit(bool(found))
