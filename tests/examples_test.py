"""The scripts run: every example, and every command of the README that calls an example or a tool, in a small setting.

All runs of one backend share one process, because importing TensorFlow takes longer than most of them.
"""

import importlib.util
import json
import re
import shlex
from pydoc_data.topics import topics

import pytest

from testing import BACKEND, ROOT, SHARED, fresh_process, readme_blocks, shell_commands

# What makes each script finish in seconds; it is appended to a command, where it overrides what stands before it.
# `small.txt` and `other.txt` are texts of 20,000 characters, `small_run` a folder that all commands share: what is
# trained there is used by those that come later. The default data are used where `.ci/run` runs the README's first
# command.
SMALL = {
    "examples/train_text.py": "--steps 2 --sample 3 --data small.txt --output small_run --restart",
    "examples/train_lenet.py": "--data digits --limit 40 --epochs 1 --output small_run/lenet",
    "examples/train_masked_lm.py": "--steps 2 --data small.txt --output small_run/masked",
    "examples/train_span_corruption.py": "--steps 2 --data small.txt --output small_run/spans",
    "examples/degradation.py": "--depths 2 3 --seeds 1 --steps 2 --learning-rates 0.01 --output small_run/d.png",
    "examples/translate_dates.py": "--steps 2 --output small_run/dates",
    "examples/translation_invariance.py": "--epochs 1 --seeds 1 --output small_run/t.png",
    "examples/train_recurrent.py": "--cells rnn transformer --parameters 900 --steps 2 --data small.txt "
    "--output small_run/recurrent",
    "examples/gradient_clipping.py": "--thresholds inf 1 --seeds 1 --steps 2 --output small_run/g.png",
    "examples/bayes_classifier.py": "--texts small.txt other.txt --steps 1 --output small_run/bayes",
    "examples/generate_text.py": "--model small_run --prompt The --max-new-tokens 3",
    "examples/export_saved_model.py": "--model small_run --output small_run/served",
    "tools/benchmark_cold_start.py": "--rounds 1 --columns import --only 'keras (TF)'",
    "tools/benchmark_lenet.py": "--rounds 1 --only 'keras_lt, fit' --images 256",
    "tools/benchmark_scaling.py": "--sweeps context --contexts 8 16 --tokens 16 --seconds 0",
    "tools/benchmark_generation.py": "--rounds 1 --columns 'little B1' --only keras_lt",
    "tools/benchmark_time_to_loss.py": "--rounds 1 --steps 2",
    "tools/benchmark_training.py": "--rounds 1 --columns little --only 'keras_lt, fit' --steps 2",
    "tools/cost_table.py": "--lengths 8 16 --widths 4 8 --spans 2 4 --path-lengths 3 5 --seconds 0 "
    "--output small_run/c.png",
    "tools/stress_saved_model.py": "--model small_run/served/1 --threads 2 --seconds 1 --max-new-tokens 3 --prompt The",
    "examples/serve_saved_model.py": "--model small_run/served --prompt The --max-new-tokens 3 "
    "--tokenizer small_run/tokenizer.json",
}

# What a SavedModel does beyond logits comes from TensorFlow, and so do the other formats; the benchmarks measure it.
NEED_TENSORFLOW = {
    *(script for script in SMALL if "benchmark_" in script),
    "examples/export_saved_model.py",
    "examples/serve_saved_model.py",
    "tools/stress_saved_model.py",
}

EXAMPLES = sorted(
    (path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py")),
    key=lambda path: ("train_" not in path, "export_" not in path, path),
)
TOOLS = sorted(path for path in (ROOT / "tools").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
SCRIPTS = EXAMPLES + [path.relative_to(ROOT).as_posix() for path in TOOLS]

# Each command runs as if typed in a checkout, which here is a fresh folder with links to the scripts and the data.
RUN_ALL = """
    import contextlib, io, json, os, pathlib, runpy, sys, traceback

    commands, links = map(json.loads, sys.argv[1:])
    start, path, results = pathlib.Path.cwd(), list(sys.path), []
    for number, (script, *arguments) in enumerate(commands):
        folder = start / str(number) / "checkout"
        folder.mkdir(parents=True)
        os.chdir(folder)
        for link, target in links.items():
            os.symlink(target, link)
        sys.argv, sys.path[:] = [script, *arguments], [os.path.dirname(script), *path]
        output, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(output):
                runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            error = f"it exits with {stop.code}" if stop.code else None
        except BaseException:
            error = traceback.format_exc()
        results.append([error, output.getvalue()])
        if "keras" in sys.modules:
            sys.modules["keras"].utils.clear_session()
            sys.modules["keras"].config.set_dtype_policy("float32")
    heavy = sorted({"keras", "tensorflow", "jax", "torch"} & set(sys.modules))
    print("\\n" + json.dumps({"results": results, "heavy": heavy}))
"""


def run_commands(commands, folder, **env):
    text = "\n".join(topics.values())
    (folder / "small.txt").write_text(text[:20_000], encoding="utf-8")
    (folder / "other.txt").write_text(text[20_000:40_000], encoding="utf-8")
    links = {"examples": ROOT / "examples", "tools": ROOT / "tools", "../shared": SHARED}
    links = {link: str(target) for link, target in links.items() if target.is_dir()}
    links["small.txt"], links["other.txt"] = str(folder / "small.txt"), str(folder / "other.txt")
    links["small_run"], links["little.onnx"] = str(folder / "small_run"), str(folder / "little.onnx")
    (folder / "small_run").mkdir(exist_ok=True)
    env = {"KERAS_LT_DATA": str(SHARED / "data") if SHARED.is_dir() else None, **env}
    return json.loads(
        fresh_process(RUN_ALL, json.dumps(commands), json.dumps(links), cwd=folder, **env).splitlines()[-1]
    )


def readme_commands():
    """The commands in the README's bash blocks that call a script: [(environment, [script, arguments ...])]."""
    found = []
    for command in [command for block in readme_blocks("bash") for command in shell_commands(block)]:
        words = shlex.split(command)
        scripts = [word for word in words if re.match(r"(examples|tools)/\w+\.py$", word)]
        if scripts:
            first = words.index(scripts[0])
            found.append((dict(word.split("=", 1) for word in words[:first] if "=" in word), words[first:]))
    return found


def small_commands():
    """Everything to run, by backend: {backend: [command]}; what the table does not name is left out here."""
    commands = [({}, [script]) for script in EXAMPLES] + readme_commands()
    by_backend = {}
    for env, (script, *arguments) in commands:
        if script in SMALL:
            command = [script, *arguments, *shlex.split(SMALL[script])]
            backend = env.get("KERAS_BACKEND", BACKEND)
            runs = by_backend.setdefault(backend, [])
            if command not in runs and (backend == "tensorflow" or script not in NEED_TENSORFLOW):
                runs.append(command)
    return by_backend


def test_the_table_names_every_script_that_is_to_run():
    needed = {*EXAMPLES, *(script for _, (script, *_) in readme_commands())}
    assert needed <= set(SMALL), f"the table SMALL has no line for {sorted(needed - set(SMALL))}"
    assert set(SMALL) <= set(SCRIPTS), f"the table SMALL names {sorted(set(SMALL) - set(SCRIPTS))}, which are not there"


@pytest.mark.parametrize("backend", sorted({BACKEND, *small_commands()}))
def test_commands_run(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    commands = small_commands().get(backend, [])
    commands = [command for command in commands if SHARED.is_dir() or "../shared" not in " ".join(command)]
    results = run_commands(commands, tmp_path, KERAS_BACKEND=backend)["results"]
    failures = [
        f"{shlex.join(command)}\n{output[-2000:]}\n{error or 'it prints nothing'}"
        for command, (error, output) in zip(commands, results, strict=True)
        if error or not output.strip()
    ]
    assert not failures, "\n\n".join(failures)


def test_help_is_there_and_fast(tmp_path):
    answer = run_commands([[script, "--help"] for script in SCRIPTS], tmp_path)
    for script, (error, output) in zip(SCRIPTS, answer["results"], strict=True):
        assert (error, output[:6]) == (None, "usage:"), f"{script} --help: {error or output}"
    assert answer["heavy"] == [], f"--help of a script imports {answer['heavy']}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_short(example):
    assert len((ROOT / example).read_text(encoding="utf-8").splitlines()) < 120
