"""The plan of the code, held by tests: floors, imports, one class a file, and docstrings that say what the code does.

Rules on source text read its AST; rules on public classes and functions compare what they say with what they are.
Every rule returns a list of findings, and is tried here on a small piece of bad code, which it must find.
"""

import ast
import collections
import doctest
import importlib
import inspect
import io
import re
import sys
import textwrap
import tokenize

import keras
import numpy as np
import pytest

from testing import ROOT

# Imports go down. Packages of one floor may not import each other.
FLOORS = [
    ["keras_lt.ops", "keras_lt.backend", "keras_lt.version"],
    ["keras_lt.optimizers", "keras_lt.losses", "keras_lt.metrics", "keras_lt.tokenizers", "keras_lt.datasets"],
    ["keras_lt.layers", "keras_lt.generation", "keras_lt.objectives"],
    ["keras_lt.models"],
    ["keras_lt.text_generator", "keras_lt.interop"],
    ["keras_lt.serving", "keras_lt.callbacks", "keras_lt.plots"],
    ["keras_lt"],
    ["examples", "tools"],
]
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}

# Libraries that may be imported anywhere, and what the tools share; all others only inside functions, and the backends
# only in these packages.
EVERYWHERE = {"keras", "numpy", "keras_lt", "benchmarking", "peers", *sys.stdlib_module_names}
BACKEND_LIBRARIES = {
    "tensorflow": ("keras_lt.backend", "keras_lt.objectives", "keras_lt.serving", "examples", "tools"),
    "jax": ("keras_lt.backend", "keras_lt.objectives", "keras_lt.serving", "tools"),
    "torch": ("keras_lt.backend", "tools"),
}

# A value for each argument that a public class of keras_lt may require.
MINIMAL = {
    "activation": "relu",
    "blocks": (1, 1),
    "cell": "gru",
    "end_token_id": 2,
    "filters": 4,
    "head_dim": 3,
    "hidden_dim": 8,
    "intermediate_dim": 5,
    "kernel_size": 3,
    "max_sequence_length": 7,
    "merges": ((97, 98), (256, 99)),
    "num_beams": 2,
    "num_classes": 3,
    "num_heads": 2,
    "num_layers": 1,
    "start_token_id": 1,
    "vocabulary": "abc",
    "vocabulary_size": 11,
}

FUNCTION_LINES = 60  # without the docstring
TESTED_FUNCTIONS = ("keras_lt.ops", "keras_lt.objectives", "keras_lt.datasets")

STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.For, ast.While, ast.If, ast.With, ast.Raise, ast.Delete, ast.Assert),
)

SECTIONS = {
    "Args": 0,
    "Call arguments": 1,
    "Input shape": 2,
    "Output shape": 3,
    "Returns": 3,
    "Yields": 3,
    "Raises": 4,
    "Example": 5,
    "Examples": 5,
    "References": 6,
    "Reference": 6,
    "Source": 6,
}
WITHOUT_DOCSTRING = ("__init__", "build", "call", "compute_output_shape", "compute_output_spec", "get_config")


class Source:
    """A Python file: its path from the root of the repository, text, AST and dotted name."""

    def __init__(self, path, text):
        self.path = path
        self.text = textwrap.dedent(text)
        self.tree = ast.parse(self.text)
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.is_package = path.endswith("__init__.py")
        parts = self.name.split(".")
        self.package = ".".join(parts[: 2 if parts[0] == "keras_lt" else 1])

    def at(self, node):
        return f"{self.path}:{getattr(node, 'lineno', node)}"


def sources(*folders):
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files]


PACKAGE = sources("keras_lt")
CODE = PACKAGE + sources("examples", "tools")
EVERYTHING = CODE + sources("tests")


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def imports(source):
    """Every import of a file, as (node, dotted target, whether it stands inside a function)."""
    inside = {id(node) for function in functions(source.tree) for node in ast.walk(function)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            parts = source.name.split(".")
            base = parts[: len(parts) - node.level + source.is_package] if node.level else []
            for alias in node.names:
                yield node, ".".join([*base, *filter(None, [node.module]), alias.name]), id(node) in inside


# Rules on source text


def floor_findings(files):
    findings = []
    for source in files:
        if source.package not in FLOOR_OF:
            findings.append(f"{source.path}: {source.package} is not in FLOORS; add it where DESIGN.md places it")
            continue
        for node, target, _ in imports(source):
            if target.split(".")[0] not in ("keras_lt", "examples", "tools"):
                continue
            package = ".".join(target.split(".")[: 2 if target.startswith("keras_lt") else 1])
            package = package if package in FLOOR_OF or package_exists(package, files) else "keras_lt"
            if package == source.package and package != "keras_lt":
                continue
            if package not in FLOOR_OF or FLOOR_OF[package] >= FLOOR_OF[source.package]:
                findings.append(f"{source.at(node)}: {source.package} may not import {package}: imports go down")
    return findings


def package_exists(package, files):
    return any(source.package == package for source in files)


def cycle_findings(files):
    """Chains of imports that come back to where they started, one for each file on such a chain."""
    names = {source.name for source in files}
    graph = collections.defaultdict(set)
    for source in files:
        for _, target, _ in imports(source):
            while target and target not in names:
                target = target.rpartition(".")[0]
            if target:
                graph[source.name].add(target)
    findings = []
    for start in sorted(names):
        reached, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - reached
            reached |= new
            waiting.extend(new)
        if start in reached:
            findings.append(f"{start}: is on a cycle of imports")
    return findings


def library_findings(files):
    findings = []
    for source in files:
        for node, target, inside in imports(source):
            library = target.split(".")[0]
            if target == "importlib.import_module":
                findings.append(f"{source.at(node)}: import_module hides what is imported")
            if library in BACKEND_LIBRARIES and source.package not in BACKEND_LIBRARIES[library]:
                findings.append(f"{source.at(node)}: {library} is imported outside {BACKEND_LIBRARIES[library]}")
            if library not in EVERYWHERE and not inside:
                findings.append(f"{source.at(node)}: {library} is imported outside a function")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
                findings.append(f"{source.at(node)}: {ast.unparse(node.func)} hides what is imported")
    return findings


def keras_src_findings(files):
    findings = []
    for source in files:
        private = [node for node, target, _ in imports(source) if f"{target}.".startswith("keras.src.")]
        private += [
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("keras.src")
        ]
        findings += [f"{source.at(node)}: uses keras.src, which is private" for node in private]
    return findings


def public_names(files):
    """What the `__init__` files export: {(package, name): source that defines it}."""
    by_name = {source.name: source for source in files}
    exports = {}
    for source in files:
        if not source.is_package:
            continue
        for node in source.tree.body:
            if isinstance(node, ast.ImportFrom) and not node.level and node.module in by_name:
                definer = by_name[node.module]
                defined = {item.name: item for item in definer.tree.body if hasattr(item, "name")}
                for alias in node.names:
                    if alias.name in defined and not (alias.asname or alias.name).startswith("_"):
                        exports[source.package, alias.name] = definer, defined[alias.name]
    return exports


def file_findings(files, paths):
    """One public class a file, named after it, and a test file for it. `paths` are the files of the repository."""
    findings, classes = [], collections.defaultdict(list)
    for (package, name), (source, node) in public_names(files).items():
        test = f"tests/{source.path.removeprefix('keras_lt/').removesuffix('.py')}_test.py"
        if isinstance(node, ast.ClassDef):
            classes[source.path].append(name)
            module = source.name.rpartition(".")[2]
            if module.replace("_", "") != name.lower():
                findings.append(f"{source.path}: the public class {name} belongs in a file named after it")
        elif package not in TESTED_FUNCTIONS:
            continue
        if test not in paths:
            findings.append(f"{source.path}: {name} is public and has no {test}")
    findings += [f"{path}: several public classes: {', '.join(names)}" for path, names in classes.items() if names[1:]]
    return sorted(set(findings))


def empty_test_findings(files):
    """Files that look like tests and would pass without a single one."""
    tests = [source for source in files if source.path.endswith("_test.py")]
    return [
        f"{source.path}: holds no test"
        for source in tests
        if not any(function.name.startswith("test") for function in functions(source.tree))
    ]


def length_findings(files):
    findings = []
    for source in files:
        for function in functions(source.tree):
            lines = function.end_lineno - function.lineno + 1
            if ast.get_docstring(function):
                lines -= function.body[0].end_lineno - function.body[0].lineno + 1
            if lines >= FUNCTION_LINES:
                findings.append(f"{source.at(function)}: {function.name} has {lines} lines, {FUNCTION_LINES} or more")
    return findings


def method_docstring_findings(files):
    return [
        f"{source.at(item)}: {node.name}.{item.name} has a docstring; what it says belongs in that of the class"
        for source in files
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name in WITHOUT_DOCSTRING and ast.get_docstring(item)
    ]


def statement_findings(files):
    findings = []
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assert):
                findings.append(f"{source.at(node)}: assert; raise a ValueError that says both sides")
            is_print = isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write")
            if is_print and source.package != "keras_lt.callbacks":
                findings.append(f"{source.at(node)}: print outside callbacks")
    return findings


def comment_findings(files):
    findings = []
    for source in files:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type != tokenize.COMMENT:
                continue
            if re.search(r"\b(TODO|FIXME|XXX)\b", token.string):
                findings.append(f"{source.at(token.start[0])}: {token.string.strip()}")
            if is_code(token.string):
                findings.append(f"{source.at(token.start[0])}: commented-out code: {token.string.strip()}")
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and re.search(
                r"\b(TODO|FIXME|XXX)\b", ast.get_docstring(node) or ""
            ):
                findings.append(f"{source.at(getattr(node, 'lineno', 1))}: unfinished according to its docstring")
    return findings


def is_code(comment):
    text = comment.lstrip("#").strip()
    if re.match(r"(def|class|for|with|while|if|elif|else|try|return|raise)\b.*[(\[=.].*:$", text):
        text = re.sub(r"^elif", "if", text) + " pass"
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return False
    return any(isinstance(node, STATEMENTS) or is_call_or_value(node, text) for node in statements)


def is_call_or_value(node, text):
    """English gives names and names with a colon: a statement calls something or gives something a value."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Expr):
        return isinstance(value, ast.Call) and bool(re.search(r"\w\(", text))
    return isinstance(node, (ast.AnnAssign, ast.Return)) and isinstance(
        value, (ast.Call, ast.BinOp, ast.Tuple, ast.Constant)
    )


# Rules on docstrings


def sections(docstring):
    """The headed parts of a docstring in their order: [(header, what stands under it)]."""
    found, body = [], []
    for line in inspect.cleandoc(docstring).splitlines():
        header = re.match(rf"({'|'.join(SECTIONS)}):", line)
        if header:
            body = [line[header.end() :]]
            found.append((header[1], body))
        elif line[:1].strip() and body:
            body = []
        else:
            body.append(line)
    return [(header, "\n".join(lines)) for header, lines in found]


def entries(body):
    """The arguments that an `Args:` section names: {name: text}, in their order."""
    found, names = {}, []
    for line in body.splitlines():
        entry = re.match(r" {4}(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*):(.*)", line)
        if entry:
            names = entry[1].split(", ")
            found.update(dict.fromkeys(names, entry[2].strip()))
        elif line.strip():
            if not names or not line.startswith(" " * 8):
                raise ValueError(f"cannot be read as `    name: text` or its continuation: {line!r}")
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found


def own_parameters(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return {item.name: item.default for item in parameters if item.kind not in kinds and item.name != "self"}


def order_findings(label, docstring):
    headers = [header for header, _ in sections(docstring)]
    ranks = [SECTIONS[header] for header in headers]
    findings = [] if ranks == sorted(ranks) else [f"{label}: sections in the order {headers}"]
    findings += [f"{label}: {header} stands twice" for header in set(headers) if headers.count(header) > 1]
    for wrong, right in {
        "Arguments": "Args",
        "Parameters": "Args",
        "Call args": "Call arguments",
        "Return": "Returns",
    }.items():
        if re.search(rf"^{wrong}:", docstring and inspect.cleandoc(docstring), re.MULTILINE):
            findings.append(f"{label}: the section {wrong!r} is called {right!r} here")
    return findings


def argument_findings(label, docstring, parameters, required):
    """`Args:` names the parameters in their order, and the defaults it states are theirs."""
    by_header = dict(sections(docstring))
    if "Args" not in by_header:
        return [f"{label}: has arguments and no `Args:`"] if parameters and required else []
    try:
        documented = {name: text for name, text in entries(by_header["Args"]).items() if name[0] != "*"}
    except ValueError as error:
        return [f"{label}: {error}"]
    findings = []
    if list(documented) != list(parameters):
        findings.append(f"{label}: Args: {list(documented)}, signature: {list(parameters)}")
    for name, text in documented.items():
        stated = re.search(r"[Dd]efaults? to `([^`]+)`", text)
        bare = re.search(r"[Dd]efaults? to (None|True|False|-?\d[\d.e-]*|\"[^\"]*\")[.,;]?( [A-Z]|$)", text)
        if bare:
            findings.append(f"{label}: {name}: the default {bare[1]} belongs in backticks")
        if stated and name in parameters and not is_value(stated[1], parameters[name]):
            findings.append(f"{label}: {name} defaults to {parameters[name]!r}, the docstring says {stated[1]}")
    return findings


def is_value(text, value):
    try:
        return ast.literal_eval(text) == value and type(ast.literal_eval(text)) is type(value)
    except (ValueError, SyntaxError):
        return text in (repr(value), getattr(value, "__name__", None))


def docstring_findings(label, thing):
    """Of a public class or function."""
    docstring = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if not docstring or not docstring.strip():
        return [f"{label}: has no docstring"]
    parameters = own_parameters(thing.__init__ if inspect.isclass(thing) else thing)
    if inspect.isclass(thing) and thing.__init__ is object.__init__:
        parameters = {}
    headers = {header for header, _ in sections(docstring)}
    cited = bool(headers & {"Source", "References", "Reference"})
    required = inspect.isclass(thing) or not cited
    findings = order_findings(label, docstring) + argument_findings(label, docstring, parameters, required)
    if inspect.isclass(thing) and callable(getattr(thing, "call", None)) and "Call arguments" in headers:
        try:
            named = {name for name in entries(dict(sections(docstring))["Call arguments"]) if name[0] != "*"}
        except ValueError as error:
            return [*findings, f"{label}: Call arguments: {error}"]
        known = set(own_parameters(thing.call)) | set(own_parameters(thing.__call__))
        if not named <= known:
            findings.append(f"{label}: Call arguments names {sorted(named - known)}, call takes {sorted(known)}")
    return findings


def method_findings(label, thing):
    """Public methods that no base defines have a docstring, whose `Args:`, if any, are those of the method."""
    inherited = {name for base in thing.__mro__ if not base.__module__.startswith("keras_lt") for name in vars(base)}
    findings = []
    for name, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or name in inherited or name in WITHOUT_DOCSTRING or not inspect.isfunction(function):
            continue
        if not function.__doc__:
            if not any(getattr(vars(base).get(name), "__doc__", None) for base in thing.__mro__[1:]):
                findings.append(f"{label}.{name}: has no docstring")
            continue
        parameters = {key: default for key, default in own_parameters(function).items() if key != "cls"}
        findings += order_findings(f"{label}.{name}", function.__doc__)
        findings += argument_findings(f"{label}.{name}", function.__doc__, parameters, required=False)
    return findings


# Rules on configurations

BASES = [
    (keras.layers.Layer, keras.layers.Layer),
    (keras.optimizers.Optimizer, lambda: keras.optimizers.Optimizer(learning_rate=0.1)),
    (keras.losses.Loss, keras.losses.Loss),
    (keras.metrics.Metric, keras.metrics.Metric),
    (object, object),
]


def config_findings(label, thing):
    """Signature, attributes and `get_config` have the same names, and the class is registered."""
    if not hasattr(thing, "get_config"):
        return []
    parameters = own_parameters(thing.__init__)
    required = [name for name, default in parameters.items() if default is inspect.Parameter.empty]
    unknown = [name for name in required if name not in MINIMAL]
    if unknown:
        return [f"{label}: give the table MINIMAL a value for {unknown}"]
    instance = thing(**{name: MINIMAL[name] for name in required})
    config = instance.get_config()
    base = next(make() for kind, make in BASES if issubclass(thing, kind))
    base_keys = set(base.get_config()) if hasattr(base, "get_config") else set()
    findings = []
    if set(parameters) - set(config):
        findings.append(f"{label}: arguments missing in get_config: {sorted(set(parameters) - set(config))}")
    if set(config) - base_keys - set(parameters):
        findings.append(f"{label}: get_config has other keys: {sorted(set(config) - base_keys - set(parameters))}")
    findings += [f"{label}: has no attribute {name}" for name in parameters if not hasattr(instance, name)]
    if not findings and thing.from_config(config).get_config() != config:
        findings.append(f"{label}: from_config and get_config do not return to the same configuration")
    if keras.saving.get_registered_name(thing) != f"keras_lt>{thing.__name__}":
        findings.append(f'{label}: is not registered with package="keras_lt"')
    return findings


class _ShapeChecker(doctest.OutputChecker):
    """A shape is printed as `TensorShape([2, 3])` or `torch.Size([2, 3])`, too; docstrings write it `(2, 3)`."""

    def check_output(self, want, got, optionflags):
        got = re.sub(r"(?:TensorShape|torch\.Size)\(\[([^\]]*)\]\)", r"(\1)", got)
        return super().check_output(want, got, optionflags)


def example_findings(label, thing):
    """The `>>>` lines of the docstring print what they say. They may use np, keras and keras_lt."""
    example = doctest.DocTestParser().get_doctest(
        inspect.cleandoc(thing.__doc__ or ""),
        {"np": np, "keras": keras, "keras_lt": importlib.import_module("keras_lt")},
        label,
        None,
        None,
    )
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner, printed = doctest.DocTestRunner(checker=_ShapeChecker(), optionflags=flags, verbose=False), io.StringIO()
    runner.run(example, out=printed.write)
    return [f"{label}: {printed.getvalue()}"] if runner.failures else []


def public_things(kind):
    """The public classes or functions of keras_lt with their labels; what two packages export comes once."""
    things = {}
    for (package, name), (_, node) in public_names(PACKAGE).items():
        if isinstance(node, kind):
            things.setdefault(getattr(importlib.import_module(package), name), f"{package}.{name}")
    return [(label, thing) for thing, label in things.items()]


def report(findings):
    assert not findings, "\n" + "\n".join(findings)


# The tree


def test_there_is_something_to_read():
    assert {"keras_lt.ops", "keras_lt.layers", "keras_lt.models"} <= {source.package for source in PACKAGE}
    assert public_things(ast.ClassDef)
    assert public_things(ast.FunctionDef)


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (floor_findings, CODE),
        (cycle_findings, CODE),
        (library_findings, CODE),
        (keras_src_findings, EVERYTHING),
        (empty_test_findings, EVERYTHING),
        (length_findings, CODE),
        (method_docstring_findings, PACKAGE),
        (statement_findings, PACKAGE),
        (comment_findings, EVERYTHING),
    ],
)
def test_source(rule, files):
    report(rule(files))


def test_files():
    report(file_findings(PACKAGE, {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}))


@pytest.mark.parametrize("rule", [docstring_findings, method_findings, config_findings, example_findings])
def test_classes(rule):
    report([finding for label, thing in public_things(ast.ClassDef) for finding in rule(label, thing)])


@pytest.mark.parametrize("rule", [docstring_findings, example_findings])
def test_functions(rule):
    report([finding for label, thing in public_things(ast.FunctionDef) for finding in rule(label, thing)])


# The rules find what is wrong, and only that

GOOD_SOURCE = """
    import math

    import keras
    import numpy as np

    from keras_lt.ops.masks import causal_mask


    @keras.saving.register_keras_serializable(package="keras_lt")
    class Scale(keras.layers.Layer):
        '''Some scale.'''

        def __init__(self, factor=2.0, **kwargs):
            super().__init__(**kwargs)
            self.factor = factor

        def call(self, inputs):
            # (B, T, D): see the equation H(x) = F(x) + x. The mask: none.
            return self.factor * inputs  # noqa: E501
"""

LAYER = "keras_lt/layers/a.py"
OP = "keras_lt/ops/a.py"
PLOT = "keras_lt/plots/a.py"
BAD_SOURCES = [
    (floor_findings, {OP: "from keras_lt.layers import b", "keras_lt/layers/b.py": ""}, "imports go down"),
    (floor_findings, {OP: "def f():\n    from ..layers import b", "keras_lt/layers/b.py": ""}, "keras_lt.layers"),
    (floor_findings, {OP: "import keras_lt.models.b"}, "may not import keras_lt.models"),
    (floor_findings, {OP: "from keras_lt import layers"}, "may not import keras_lt.layers"),
    (floor_findings, {OP: "from keras_lt import anything"}, "may not import keras_lt:"),
    (floor_findings, {"keras_lt/losses/a.py": "from keras_lt.metrics.b import C"}, "may not import keras_lt.metrics"),
    (floor_findings, {PLOT: "from examples import train_text"}, "may not import examples"),
    (floor_findings, {"keras_lt/__init__.py": "import tools.bench"}, "may not import tools"),
    (floor_findings, {"examples/a.py": "import tools.bench"}, "may not import tools"),
    (floor_findings, {"keras_lt/utils/a.py": ""}, "keras_lt.utils is not in FLOORS"),
    (cycle_findings, {OP: "from .b import f", "keras_lt/ops/b.py": "from keras_lt.ops import a"}, "cycle"),
    (cycle_findings, {OP: "from keras_lt.ops import g", "keras_lt/ops/__init__.py": "from . import a"}, "cycle"),
    (library_findings, {"keras_lt/backend/a.py": "import tensorflow as tf"}, "outside a function"),
    (library_findings, {LAYER: "def f():\n    import tensorflow as tf"}, "tensorflow is imported outside"),
    (library_findings, {OP: "def f():\n    from jax import numpy"}, "jax is imported outside"),
    (library_findings, {"keras_lt/serving/a.py": "def f():\n    import torch"}, "torch is imported outside"),
    (library_findings, {PLOT: "from matplotlib import pyplot"}, "matplotlib is imported outside"),
    (library_findings, {PLOT: "try:\n    import sklearn\nexcept ImportError:\n    pass"}, "sklearn is imported"),
    (library_findings, {PLOT: "f = importlib.import_module('torch')"}, "hides"),
    (library_findings, {PLOT: "from importlib import import_module"}, "hides"),
    (keras_src_findings, {OP: "from keras.src import backend"}, "private"),
    (keras_src_findings, {"tests/a_test.py": "def f():\n    import keras.src.layers"}, "private"),
    (keras_src_findings, {"tools/a.py": "import keras\nkeras.src.backend.floatx()"}, "private"),
    (keras_src_findings, {"tools/a.py": "from keras import src"}, "private"),
    (empty_test_findings, {"tests/ops/a_test.py": "class ATest:\n    pass"}, "holds no test"),
    (length_findings, {OP: "def f():\n" + "    x = 1\n" * FUNCTION_LINES}, "lines"),
    (method_docstring_findings, {LAYER: "class A:\n    def call(self):\n        '''Calls.'''"}, "of the class"),
    (statement_findings, {OP: "assert 1 == 1"}, "assert"),
    (statement_findings, {LAYER: "def f():\n    print(1)"}, "print"),
    (comment_findings, {OP: "x = 1  # TO" + "DO: more"}, "TO" + "DO"),
    (comment_findings, {OP: "def f():\n    '''FIX" + "ME later.'''"}, "unfinished"),
    (comment_findings, {OP: "# x = relu(x)"}, "commented-out"),
    (comment_findings, {OP: "#return f(x)"}, "commented-out"),
    (comment_findings, {OP: "# if x.built:"}, "commented-out"),
    (comment_findings, {OP: "# self.dense.build(shape)"}, "commented-out"),
]


def project(files):
    return [Source(path, text) for path, text in files.items()]


@pytest.mark.parametrize(("rule", "files", "finding"), BAD_SOURCES)
def test_source_rules_find(rule, files, finding):
    found = rule(project(files))
    assert any(finding in text for text in found), found


@pytest.mark.parametrize("rule", sorted({rule for rule, _, _ in BAD_SOURCES}, key=lambda rule: rule.__name__))
def test_source_rules_find_nothing_in_good_code(rule):
    files = {
        "keras_lt/layers/scale.py": GOOD_SOURCE,
        "keras_lt/ops/masks.py": "import keras",
        "keras_lt/serving/a.py": "from keras_lt.layers.scale import Scale\ndef f():\n    import tensorflow",
        "keras_lt/callbacks/a.py": "print(1)",
        "keras_lt/__init__.py": "from keras_lt import layers",
        "tests/layers/scale_test.py": "class ScaleTest:\n    def test_config(self):\n        pass",
    }
    del files["tests/layers/scale_test.py" if rule is floor_findings else "keras_lt/__init__.py"]
    assert rule(project(files)) == []


def test_file_rule():
    bad = {
        "keras_lt/layers/__init__.py": "from keras_lt.layers.all import FirstThing, SecondThing",
        "keras_lt/layers/all.py": "class FirstThing:\n    pass\nclass SecondThing:\n    pass",
        "keras_lt/ops/__init__.py": "from keras_lt.ops.a import f",
        "keras_lt/ops/a.py": "def f():\n    pass",
    }
    assert file_findings(project(bad), {"tests/ops/a_test.py"}) == [
        "keras_lt/layers/all.py: FirstThing is public and has no tests/layers/all_test.py",
        "keras_lt/layers/all.py: SecondThing is public and has no tests/layers/all_test.py",
        "keras_lt/layers/all.py: several public classes: FirstThing, SecondThing",
        "keras_lt/layers/all.py: the public class FirstThing belongs in a file named after it",
        "keras_lt/layers/all.py: the public class SecondThing belongs in a file named after it",
    ]
    assert "keras_lt/ops/a.py: f is public and has no tests/ops/a_test.py" in file_findings(project(bad), set())
    good = {
        "keras_lt/layers/__init__.py": "from keras_lt.layers.first_thing import FirstThing",
        "keras_lt/layers/first_thing.py": "class FirstThing:\n    pass\nclass _Part:\n    pass",
    }
    assert file_findings(project(good), {"tests/layers/first_thing_test.py"}) == []


class GoodLayer(keras.layers.Layer):
    """Multiplies.

    Args:
        hidden_dim: Integer. Where the sum has two parts:
            this is the second.
        factor, name_2: Floats or strings. Defaults to `2.0`.
        kind: String. Defaults to `"plain"`, which is fast.
        **kwargs: Of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor.

    Returns:
        A tensor.

    Example:

    >>> keras.ops.ones((2, 3)).shape
    (2, 3)

    Source: S1, `f`.
    """

    def __init__(self, hidden_dim, factor=2.0, name_2=2.0, kind="plain", **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.factor = factor
        self.name_2 = name_2
        self.kind = kind

    def call(self, inputs):
        return inputs * self.factor

    def double(self):
        """Twice."""

    def get_config(self):
        own = {"hidden_dim": self.hidden_dim, "factor": self.factor, "name_2": self.name_2, "kind": self.kind}
        return {**super().get_config(), **own}


def bad_layer(**changes):
    """`GoodLayer` with other attributes and, as `docstring`, one piece of its docstring in place of another."""
    old, new = changes.pop("docstring", ("", ""))
    assert old in GoodLayer.__doc__
    docstring = GoodLayer.__doc__.replace(old, new) if old else GoodLayer.__doc__
    return type("BadLayer", (GoodLayer,), {"__doc__": docstring, "__module__": "keras_lt.bad", **changes})


def config_with(**changes):
    return lambda self: {**GoodLayer.get_config(self), **changes}


def config_without(key):
    return lambda self: {name: value for name, value in GoodLayer.get_config(self).items() if name != key}


class WithoutKind(GoodLayer):
    def __init__(self, hidden_dim, factor=2.0, name_2=2.0, kind="plain", **kwargs):
        GoodLayer.__init__(self, hidden_dim, factor, name_2, kind, **kwargs)
        del self.kind

    def get_config(self):
        own = {"hidden_dim": self.hidden_dim, "factor": self.factor, "name_2": self.name_2, "kind": "plain"}
        return {**keras.layers.Layer.get_config(self), **own}


BAD_LAYERS = [
    (docstring_findings, {"docstring": (GoodLayer.__doc__, "")}, "no docstring"),
    (docstring_findings, {"docstring": ("Args:", "Arguments:")}, "is called 'Args'"),
    (docstring_findings, {"docstring": ("kind: ", "mode: ")}, "signature"),
    (docstring_findings, {"docstring": ("factor, name_2", "name_2, factor")}, "signature"),
    (docstring_findings, {"docstring": ("`2.0`", "`2`")}, "the docstring says 2"),
    (docstring_findings, {"docstring": ('`"plain"`', "`None`")}, "the docstring says None"),
    (docstring_findings, {"docstring": ("`2.0`", "2.0")}, "belongs in backticks"),
    (docstring_findings, {"docstring": ("            this is", "        this is")}, "cannot be read"),
    (docstring_findings, {"docstring": ("        inputs: Tensor", "        tensor: Tensor")}, "call takes"),
    (docstring_findings, {"docstring": ("Source: S1", "Returns: It.\n\n    Source: S1")}, "in the order"),
    (docstring_findings, {"docstring": ("Source: S1", "Source: S2.\n\n    Source: S1")}, "twice"),
    (method_findings, {"triple": lambda self: None}, "triple: has no docstring"),
    (method_findings, {"plain": property(lambda self: None)}, "plain: has no docstring"),
    (config_findings, {"get_config": config_without("kind")}, "missing in get_config: ['kind']"),
    (config_findings, {"get_config": config_with(width=3)}, "other keys: ['width']"),
    (config_findings, {"from_config": lambda config: GoodLayer(3, kind="other")}, "do not return"),
    (config_findings, {"__init__": WithoutKind.__init__, "get_config": WithoutKind.get_config}, "no attribute kind"),
    (config_findings, {}, "is not registered"),
    (example_findings, {"docstring": ("(2, 3)\n\n", "(3, 2)\n\n")}, "Expected"),
]


@pytest.mark.parametrize(("rule", "changes", "finding"), BAD_LAYERS)
def test_class_rules_find(rule, changes, finding):
    found = rule("Bad", bad_layer(**changes))
    assert any(finding in text for text in found), found


@pytest.mark.parametrize("rule", [docstring_findings, method_findings, config_findings, example_findings])
def test_class_rules_find_nothing_in_good_code(rule):
    assert rule("Good", keras.saving.register_keras_serializable(package="keras_lt")(GoodLayer)) == []


def test_required_arguments_are_in_the_table():
    def __init__(self, unheard_of, **kwargs):
        GoodLayer.__init__(self, 3, **kwargs)

    assert "['unheard_of']" in config_findings("Bad", bad_layer(__init__=__init__))[0]


def test_function_rules():
    def silent(x):
        return x

    def cited(x):
        """Returns it.

        Source: S1.
        """
        return x

    def uncited(x):
        """Returns it."""
        return x

    def drifted(x, epsilon=1e-5):
        """Returns it.

        Args:
            x: Tensor.
            epsilon: Float. Defaults to `1e-6`.
        """
        return x + epsilon

    assert docstring_findings("f", silent) == ["f: has no docstring"]
    assert docstring_findings("f", cited) == []
    assert docstring_findings("f", uncited) == ["f: has arguments and no `Args:`"]
    assert docstring_findings("f", drifted) == ["f: epsilon defaults to 1e-05, the docstring says 1e-6"]
