"""The README says what is so: its Python blocks run, its commands are run here or by `.ci/run`, its tree is the tree.

Its requests to TensorFlow Serving are sent, as far as that goes without one: their inputs are those of the signature.

Commands that call an example or a tool are run by `examples_test.py`. Figures are not checked here: a command stands
beside each.
"""

import ast
import fnmatch
import json
import re
import shlex
import textwrap

import pytest

from testing import BACKEND, ROOT, SHARED, fresh_process, readme_blocks, shell_commands

# Commands outside the first two bash blocks that call no script, and what stands for them in `.ci/run`.
OTHER_COMMANDS = {
    "bash .ci/run": "#!/usr/bin/env bash",
    ".ci/run": "#!/usr/bin/env bash",
    '.venv/bin/pip install -e ".[jax]"': 'install --quiet -e ".[jax]"',
    "KERAS_BACKEND=jax .venv/bin/python -m pytest -n 2 --dist loadfile": "KERAS_BACKEND=jax bash",
    ".venv/bin/ruff check .": ".venv/bin/ruff check .",
    ".venv/bin/ruff format --check .": ".venv/bin/ruff format --check .",
}

# Short runs: whatever a block trains, it trains for two steps.
RUN_BLOCKS = """
    import json, sys

    import keras

    def fit(self, *args, fit=keras.Model.fit, **kwargs):
        few = {"epochs": 1, "steps_per_epoch": 2, "verbose": 0}
        if kwargs.get("validation_data") is not None:
            few["validation_steps"] = 2
        return fit(self, *args, **{**kwargs, **few})

    def evaluate(self, *args, evaluate=keras.Model.evaluate, **kwargs):
        return evaluate(self, *args, **{"steps": 2, **kwargs})

    keras.Model.fit, keras.Model.evaluate = fit, evaluate
    namespace = {"__name__": "__main__"}
    for number, block in enumerate(json.loads(sys.argv[1]), 1):
        exec(compile(block, f"<README.md, Python block {number}>", "exec"), namespace)
"""


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def tree_paths(tree):
    """The paths that an indented tree names: a folder ends in `/`, what it holds is indented below it.

    keras_lt/        the package
      ops/           the equations
      version.py
    """
    paths, open_folders = [], []
    for line in tree.splitlines():
        match = re.match(r"[\s│├└─|`-]*", line)
        name = line[match.end() :].split("  ")[0].strip()
        if not name:
            continue
        while open_folders and open_folders[-1][0] >= match.end():
            open_folders.pop()
        path = "".join(folder for _, folder in open_folders) + name
        paths.append(path)
        if name.endswith("/"):
            open_folders.append((match.end(), name))
    return paths


def tree_findings(tree, root):
    """What the tree names and is not there, and what is there and the tree does not name.

    At the root and in each folder of which the tree names something, it names every folder and every Python file but
    `__init__.py`; hidden, ignored and empty ones need not be named.
    """
    paths = tree_paths(tree)
    ignored = [line.strip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").split()]
    findings = [f"{path} is not there" for path in paths if not (root / path).exists()]
    findings += [f"{path} is a folder: write {path}/" for path in paths if path[-1] != "/" and (root / path).is_dir()]
    expanded = {"", *(path.rstrip("/").rpartition("/")[0] for path in paths)}
    for folder in sorted(expanded):
        for item in sorted((root / folder).iterdir()):
            path = item.relative_to(root).as_posix() + ("/" if item.is_dir() else "")
            hidden = item.name.startswith(".") or any(fnmatch.fnmatch(item.name, pattern) for pattern in ignored)
            named = (item.is_dir() and any(item.iterdir())) or (item.suffix == ".py" and item.name != "__init__.py")
            if named and not hidden and path not in paths:
                findings.append(f"{path} is there and not in the tree")
    return findings


def test_python_blocks_run(readme, tmp_path):
    found = readme_blocks("python")
    assert found, "the README has no Python block"
    assert len(found) == readme.count("```python"), "a Python block has more behind ```python than a line break"
    if BACKEND != "tensorflow":  # what a SavedModel does beyond logits comes from TensorFlow
        found = [block for block in found if "import tensorflow" not in block]
    (tmp_path / "checkout").mkdir()
    data = {"KERAS_LT_DATA": str(SHARED / "data")} if SHARED.is_dir() else {}
    fresh_process(RUN_BLOCKS, json.dumps(found), cwd=tmp_path / "checkout", **data)


def test_every_command_is_run_somewhere(readme):
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = readme_blocks("bash")
    assert len(found) == readme.count("```bash"), "a bash block has more behind ```bash than a line break"
    assert not re.findall(r"^```(?:sh|shell|console)$", readme, re.MULTILINE), "commands belong in ```bash blocks"
    set_up, test = map(shell_commands, found[:2])
    assert any("-m venv" in command for command in set_up)
    assert any("-m pytest" in command for command in test)
    for command in [command for block in found[2:] for command in shell_commands(block)]:
        if not re.search(r"\b(examples|tools)/\w+\.py\b", command):
            assert command in OTHER_COMMANDS, f"nothing runs the README's command {command!r}"
            assert OTHER_COMMANDS[command] in ci, f".ci/run no longer runs {command!r}"


def test_requests_have_the_inputs_of_the_signature(readme):
    """REST and gRPC: the same inputs, all that `generate` takes; the Python of the gRPC request can be read."""
    blocks = readme_blocks("text")
    (curl,) = [block for block in blocks if block.startswith("curl")]
    (grpc,) = [block for block in blocks if "import grpc" in block]
    (docker,) = [block for block in blocks if block.startswith("docker")]
    body = json.loads(shlex.split(curl)[-1])
    (inputs,) = re.findall(r"^inputs = (.*)$", grpc, re.MULTILINE)
    compile(grpc, "README.md", "exec")
    assert body["signature_name"] == "generate"
    assert body["inputs"] == ast.literal_eval(inputs)
    assert set(body["inputs"]) == {"prompts", "max_new_tokens", "temperature", "top_k", "top_p", "seed"}
    (name,) = re.findall(r"MODEL_NAME=(\w+)", docker)
    assert f"/models/{name}:predict" in curl
    assert f'request.model_spec.name, request.model_spec.signature_name = "{name}", "generate"' in grpc


def test_tree(readme):
    trees = [
        block for block in readme_blocks("text") + readme_blocks("") if re.search(r"^keras_lt/", block, re.MULTILINE)
    ]
    assert len(trees) == 1, "the README shows one tree, in a block of its own that has a line starting with keras_lt/"
    findings = tree_findings(trees[0], ROOT)
    assert not findings, "\n" + "\n".join(findings)


def test_links_lead_somewhere(readme):
    prose = re.sub(r"^```.*\n((?:.*\n)*?)```$", "", readme, flags=re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_tree_rule_finds_what_is_wrong(tmp_path):
    for path in ("pkg/ops/a.py", "pkg/ops/__init__.py", "pkg/b.py", "tests/a_test.py", "runs/x.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "empty").mkdir()
    good = """
        pkg/            the package
        ├── ops/        the maths
        │   └── a.py
        └── b.py        one file
        tests/
    """
    assert tree_paths(textwrap.dedent(good)) == ["pkg/", "pkg/ops/", "pkg/ops/a.py", "pkg/b.py", "tests/"]
    assert tree_findings(textwrap.dedent(good), tmp_path) == []
    assert tree_findings("pkg/\n  ops/\n  b.py\n  c.py\ntests/", tmp_path) == ["pkg/c.py is not there"]
    assert tree_findings("pkg/\n  ops/\ntests/", tmp_path) == ["pkg/b.py is there and not in the tree"]
    assert tree_findings("pkg/", tmp_path) == ["tests/ is there and not in the tree"]
    assert tree_findings("pkg\ntests/", tmp_path)[0] == "pkg is a folder: write pkg/"


def test_commands_are_read():
    assert shell_commands("a -m b && c  # why\n# nothing\nd \\\n    e\n") == ["a -m b", "c", "d e"]
