"""Measure S2's table of what layers cost: complexity, sequential operations, maximum path length.

KERAS_BACKEND=jax python tools/cost_table.py      # a minute on two CPU cores

Time and memory are of the forward pass of one sequence through one compiled layer; exponents are the slopes of straight
lines through all but the smallest sizes, both axes logarithmic. Attention stands without its projections, which cost
O(n d^2) like all that maps single positions: the table's O(n^2 d) is of attention itself. Time is processor time of all
threads, the mean of several runs, which other programs disturb little. Memory is what XLA says the program allocates,
its result included, inputs and weights not: exact, and the same in every run. Sequential operations are the longest
chain of matrix products in the traced program, a loop counted as often as it turns. The path is the number of layers,
stacked one by one, until the derivative of output n by input 1 is not 0; within a recurrent layer, one of which is
enough, the turns of its loop are counted.

Prints tables, then one JSON line, and draws.
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import time

KERNEL, WINDOW, PATH_WINDOW = 3, 64, 8  # k and r where they do not vary; r of the paths
TABLE = {  # S2's complexity and sequential operations
    "self-attention": ("O(n^2 d)", "O(1)"),
    "recurrent": ("O(n d^2)", "O(n)"),
    "convolution": ("O(k n d^2)", "O(1)"),
    "restricted": ("O(r n d)", "O(1)"),
}
PATHS = {  # as in S2 (contiguous kernels as in the paper behind it), and exactly
    "self-attention": ("O(1)", "1"),
    "recurrent": ("O(n)", "n"),
    "convolution": ("O(n / k)", "n / (k-1)"),
    "convolution, dilated": ("O(log_k n)", "log_k n"),
    "restricted": ("O(n / r)", "n / (r-1)"),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="n (default: 512 1024 2048 4096)")
    add("--widths", type=int, nargs="+", default=[128, 256, 512, 1024], help="d (default: 128 256 512 1024)")
    add("--spans", type=int, nargs="+", default=[16, 32, 64, 128], help="k and r (default: 16 32 64 128)")
    add("--path-lengths", type=int, nargs="+", default=[16, 64, 256], help="n of the paths (default: 16 64 256)")
    add("--seconds", type=float, default=0.6, help="for which each program is timed (default: 0.6)")
    add("--output", type=pathlib.Path, default="runs/cost_table.png", help="picture (default: runs/cost_table.png)")
    arguments = parser.parse_args()
    for name in ("lengths", "widths", "spans", "path_lengths"):
        sizes = sorted(set(getattr(arguments, name)))
        if len(sizes) < 2 or sizes[0] < 2:
            parser.error(f"--{name.replace('_', '-')} must be two or more different sizes of at least 2")
        setattr(arguments, name, sizes)
    return arguments


def make_program(kind: str, n: int, d: int, span: int):
    """A function and its arguments: one layer of one head, a batch of one sequence."""
    if kind in ("self-attention", "restricted"):
        arrays = tuple(np.random.default_rng(0).normal(size=(3, 1, 1, n, d)).astype("float32"))
        if kind == "restricted":
            return lambda query, key, value: keras_lt.ops.local_attention(query, key, value, span), arrays
        return keras_lt.ops.dot_product_attention, arrays
    layer = make_layer(kind, d, span)
    x = np.random.default_rng(0).normal(size=(1, n, d)).astype("float32")
    layer.build(x.shape)
    weights = [variable.value for variable in layer.trainable_variables]
    state = [variable.value for variable in layer.non_trainable_variables]
    return lambda weights, x: layer.stateless_call(weights, state, x)[0], (weights, x)


def make_layer(kind: str, d: int, span: int, dilation: int = 1):
    if kind == "recurrent":
        return keras.layers.SimpleRNN(d, return_sequences=True)
    if kind == "convolution":
        return keras.layers.Conv1D(d, span, padding="causal", dilation_rate=dilation)
    return keras_lt.layers.CausalMultiHeadAttention(1, window_size=span if kind == "restricted" else None)


def measure(kind: str, n: int, d: int, span: int, seconds: float) -> dict[str, float]:
    """Seconds of processor time, megabytes and sequential operations of one forward pass."""
    import jax

    function, arguments = make_program(kind, n, d, span)
    program = jax.jit(function).lower(*arguments).compile()
    arguments = jax.device_put(arguments)
    program(*arguments).block_until_ready()
    runs, start, start_of_work = 0, time.perf_counter(), time.process_time()
    while runs < 3 or time.perf_counter() - start < seconds:
        program(*arguments).block_until_ready()
        runs += 1
    work = time.process_time() - start_of_work
    memory = program.memory_analysis()
    return {
        "seconds": max(work / runs, 1e-9),  # the clock may not have moved
        "megabytes": (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20,
        "sequential": longest_chain(jax.make_jaxpr(function)(*arguments).jaxpr),
    }


def longest_chain(jaxpr) -> int:
    """The most matrix products of a traced program of which each needs the one before."""
    depths = {}
    for line in jaxpr.eqns:
        inner = [getattr(value, "jaxpr", value) for value in line.params.values()]
        own = max((longest_chain(program) for program in inner if hasattr(program, "eqns")), default=0)
        own *= line.params["length"] if line.primitive.name == "scan" else 1
        own += line.primitive.name in ("dot_general", "conv_general_dilated")
        start = max((depths.get(x, 0) for x in line.invars if not hasattr(x, "val")), default=0)
        depths.update(dict.fromkeys(line.outvars, start + own))
    return max(depths.values(), default=0)


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of `log(value)` over `log(size)`, without the smallest quarter of the sizes."""
    first = len(sizes) // 4
    slope, _ = np.polyfit(np.log(sizes[first:]), np.log(values[first:]), 1)
    return round(float(slope), 2)


def unit(vectors):
    """Vectors of length 1, or of length 0 as they were."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)


def path_length(kind: str, n: int, dilated: bool = False) -> int:
    """How many layers it takes until the derivative of output n by input 1 is not 0; steps in a recurrent layer."""
    import jax

    d, span = 4, KERNEL if kind == "convolution" else PATH_WINDOW
    x = unit(np.random.default_rng(0).normal(size=(1, n, d)).astype("float32")) / 100  # where tanh is steep
    tangent, step = np.zeros_like(x), None
    tangent[0, 0] = 1
    for number in range(1, n + 1):
        if step is None or dilated:
            layer = make_layer(kind, d, span, dilation=span ** (number - 1) if dilated else 1)
            layer.build(x.shape)
            step = jax.jit(lambda x, tangent, layer=layer: jax.jvp(lambda x: layer(x), (x,), (tangent,)))
        x, tangent = map(np.asarray, step(x, tangent))
        if (tangent[0, -1] != 0).any():
            return number * (longest_chain(jax.make_jaxpr(layer)(x).jaxpr) if kind == "recurrent" else 1)
        # Every position back to its length, or the derivative would be too small a number long before it is 0.
        x, tangent = unit(x) / 100, unit(tangent)
    raise RuntimeError(f"input 1 does not reach output {n} of {kind} in {n} layers")


def measure_all(arguments: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    """What `measure` says for each kind of layer along each axis; the other sizes are the second of theirs."""
    results = {}
    for kind, (complexity, _) in TABLE.items():
        letter = "k" if kind == "convolution" else "r"
        base = {"n": arguments.lengths[1], "d": arguments.widths[1], letter: KERNEL if letter == "k" else WINDOW}
        sweeps = {"n": arguments.lengths, "d": arguments.widths, letter: arguments.spans}
        results[kind] = {}
        for axis in [axis for axis in sweeps if axis in complexity]:
            results[kind][axis] = []
            for size in sweeps[axis]:
                n, d, span = {**base, axis: size}.values()
                found = measure(kind, n, d, span, arguments.seconds)
                results[kind][axis].append({"size": size, **found})
                cells = f"{1e3 * found['seconds']:9.2f} ms {found['megabytes']:8.2f} MiB"
                print(f"{kind:16}{axis} = {size:5} {cells} {found['sequential']:6} sequential", flush=True)
    return results


def exponents(results, measured: str) -> dict[str, dict[str, float]]:
    return {
        kind: {axis: exponent([x["size"] for x in sweep], [x[measured] for x in sweep]) for axis, sweep in axes.items()}
        for kind, axes in results.items()
    }


def draw(results, paths, arguments: argparse.Namespace) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    measures = [
        ("n", "seconds", "processor time [s]"),
        ("d", "seconds", "processor time [s]"),
        ("n", "megabytes", "MiB"),
    ]
    for axes, (axis, measured, label) in zip(panels.flat, measures, strict=False):
        for marker, kind in zip("osvD", TABLE, strict=True):
            sizes, values = zip(*((x["size"], x[measured]) for x in results[kind][axis]), strict=True)
            axes.loglog(sizes, values, marker=marker, label=f"{kind}, {TABLE[kind][0]}")
        axes.set(xlabel={"n": "length n", "d": "width d"}[axis], ylabel=label)
        axes.set_xticks(sizes, map(str, sizes), minor=False)
        axes.set_xticks([], minor=True)
    panels[0, 0].legend()
    for marker, kind in zip("osv^D", PATHS, strict=True):
        panels[1, 1].loglog(arguments.path_lengths, paths[kind], marker=marker, label=f"{kind}, {PATHS[kind][1]}")
    panels[1, 1].set(xlabel="length n", ylabel=f"path from 1 to n (k = {KERNEL}, r = {PATH_WINDOW})")
    panels[1, 1].set_xticks(arguments.path_lengths, map(str, arguments.path_lengths))
    panels[1, 1].set_xticks([], minor=True)
    panels[1, 1].legend()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, dpi=120)
    print(f"drawn in {arguments.output}")


def main(arguments: argparse.Namespace) -> None:
    results, paths = measure_all(arguments), {}
    for kind in PATHS:
        name, _, dilated = kind.partition(", ")
        paths[kind] = [path_length(name, n, bool(dilated)) for n in arguments.path_lengths]
    time_exponents, memory_exponents = exponents(results, "seconds"), exponents(results, "megabytes")
    print(f"\n{'':16}{'S2':12}{'time':26}memory")
    for kind in TABLE:
        cells = [" ".join(f"{a}^{e:.2f}" for a, e in x[kind].items()) for x in (time_exponents, memory_exponents)]
        print(f"{kind:16}{TABLE[kind][0]:12}{cells[0]:26}{cells[1]}")
    print(f"\n{'':16}{'S2':6}sequential operations at n = {arguments.lengths}")
    sequential = {kind: [x["sequential"] for x in axes["n"]] for kind, axes in results.items()}
    for kind, counts in sequential.items():
        print(f"{kind:16}{TABLE[kind][1]:6}{counts}")
    print(f"\n{'':22}{'S2':12}path from 1 to n = {arguments.path_lengths}, k = {KERNEL}, r = {PATH_WINDOW}")
    for kind, lengths in paths.items():
        print(f"{kind:22}{PATHS[kind][0]:12}{lengths!s:18}expected {PATHS[kind][1]}")
    draw(results, paths, arguments)
    summary = {"time": time_exponents, "memory": memory_exponents, "sequential": sequential, "path": paths}
    print(json.dumps({**summary, "lengths": arguments.lengths, "path_lengths": arguments.path_lengths}))


if __name__ == "__main__":
    arguments = parse_arguments()
    if not importlib.util.find_spec("matplotlib"):
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras

    if keras.backend.backend() != "jax":
        sys.exit("Memory and loops are read off what JAX compiles: set KERAS_BACKEND=jax (pip install 'keras_lt[jax]')")
    import numpy as np

    import keras_lt

    main(arguments)
