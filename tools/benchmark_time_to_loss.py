"""Measure seconds, from the start of a process, until a model of Shakespeare's letters has a validation loss of 1.886.

export KERAS_LT_DATA=path/to/data      # the folder that holds tinyshakespeare.txt
python tools/benchmark_time_to_loss.py      # five minutes on two CPU cores

The loss is that of nanoGPT's run on a CPU after its 2,000 steps. All see contexts of 64 letters of the first nine
tenths of the text, and are judged on the last tenth. keras_lt is the example, `train_text.py --preset quick`, whole:
import, compilation, saving ten times, validation after each tenth on all of the held-out text. PyTorch is a model of
nanoGPT's size (4 layers, width 128) and start, under its settings: batches of 12, 2,000 steps, AdamW with betas 0.9 and
0.99, weight decay 0.1, gradients clipped at 1, 100 steps of warm-up and a cosine from 0.001 to 0.0001, and every 250
steps 20 batches of either part to see where it stands; its process ends after the last step, and the held-out text is
read once more, whole, off the clock.

Prints the seconds and the losses at the end, then one JSON line.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import benchmarking

TARGET = 1.886
STEPS = {"keras_lt": 900, "PyTorch": 2000}
WARMUP, BATCH_SIZE, LENGTH = 100, 12, 64
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "train_text.py"


def run_example(steps: int) -> tuple[float, float]:
    """Seconds of the example and the validation loss it prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLE), "--preset", "quick", "--steps", str(steps), "--sample", "0"]
        start = time.perf_counter()
        output = subprocess.run([*command, "--output", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
        return time.perf_counter() - start, float(re.search(r"validation loss ([\d.]+)", output)[1])


def run_pytorch(steps: int) -> tuple[float, float]:
    """Seconds of a process that trains in PyTorch, as it says them itself, and the validation loss."""
    start = time.time()
    command = [sys.executable, __file__, "--train-pytorch", "--steps", str(steps)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    end, loss = json.loads(output.splitlines()[-1])
    return end - start, loss


def train_pytorch(steps: int) -> None:
    import numpy as np
    import torch

    from peers import sizes, torch_gpt

    ids = torch.from_numpy(sizes.token_ids()).long()
    split = len(ids) * 9 // 10
    parts = {"train": ids[:split], "validation": ids[split:]}
    arguments = sizes.model_arguments("nanogpt-cpu")
    model = torch_gpt.module_classes()[1](**arguments)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            is_last = name.endswith(("output.weight", "contract.weight"))
            torch.nn.init.normal_(weight, std=0.02 / math.sqrt(2 * len(model.blocks)) if is_last else 0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.99), fused=True)
    generator = torch.Generator().manual_seed(0)

    def draw(part):
        starts = torch.randint(len(part) - LENGTH - 1, (BATCH_SIZE, 1), generator=generator)
        windows = part[starts + torch.arange(LENGTH + 1)]
        return windows[:, :-1], windows[:, 1:]

    def estimate():
        with torch.no_grad():
            return {name: float(np.mean([model(*draw(part)) for _ in range(20)])) for name, part in parts.items()}

    for step in range(steps):
        if step % 250 == 0:
            estimate()
        progress = (step - WARMUP) / (STEPS["PyTorch"] - WARMUP)
        rate = (step + 1) / WARMUP if step < WARMUP else 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * rate
        loss = model(*draw(parts["train"]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    estimate()
    end = time.time()
    held_out = parts["validation"][: (len(parts["validation"]) - 1) // LENGTH * LENGTH + 1]
    with torch.no_grad():
        loss = model(held_out[:-1].reshape(-1, LENGTH), held_out[1:].reshape(-1, LENGTH)).item()
    print(json.dumps([end, loss]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=benchmarking.positive, default=3, help="runs of each (default: 3)")
    parser.add_argument("--steps", type=benchmarking.positive, help="batches, to try it out (default: 900 and 2000)")
    parser.add_argument("--train-pytorch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train_pytorch:
        train_pytorch(arguments.steps or STEPS["PyTorch"])
        return
    runs = {"keras_lt": run_example, "PyTorch": run_pytorch}
    if importlib.util.find_spec("torch") is None:
        print("PyTorch: skipped, torch is not installed")
        del runs["PyTorch"]
    results = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            results[name].append(run(arguments.steps or STEPS[name]))
            print(f"{name}: {results[name][-1][0]:.1f} s, validation loss {results[name][-1][1]:.4f}", flush=True)
    medians = {name: statistics.median(seconds for seconds, _ in measured) for name, measured in results.items()}
    for name, median in medians.items():
        reached = all(loss <= TARGET for _, loss in results[name])
        print(
            f"{name}: {median:.1f} s, {median / medians['keras_lt']:.2f} times keras_lt's; "
            f"{TARGET} was {'' if reached else 'not '}reached in every run"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
