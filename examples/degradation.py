"""Deeper is not better, unless layers learn what to add: plain, residual and highway networks of dense layers.

S2's claims: deep plain networks do worse on the very data they are trained on; residual ones do not, because the
derivative of two layers, `dy/dx = g'f' + g' + f' + 1`, keeps a 1; highway networks do, because they keep `(1 - g)^n`.
All see the same batches; learning rates are the best of seed 0, for each network at each depth. `F` of plain `F(x)` and
residual `F(x) + x` is dense, batch normalisation, relu, as in He et al.; `Highway` is not normalised, as in Srivastava
et al., its `1 - g` about 0.88 (bias -2) or 0.98 (-4). Depth counts dense layers, the classifier too, but not gates.

python examples/degradation.py                                      # three minutes on two CPU cores
python examples/degradation.py --depths 64 --seeds 1 --steps 1000   # three minutes: who only learns more slowly?
"""

import argparse
import importlib.util
import pathlib
import sys

NETWORKS = ("plain", "residual", "highway -2", "highway -4")
MEASURES = ("training error [%]", "training loss", "gradient norm, first layer, untrained")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, rates = parser.add_argument, [0.03, 0.01, 0.003]
    add("--depths", type=int, nargs="+", default=[4, 16, 32, 64], help="dense layers (default: 4 16 32 64)")
    add("--seeds", type=int, default=3, help="number of seeds, of weights and batches (default: 3)")
    add("--steps", type=int, default=200, help="batches of 128 (default: 200)")
    add("--learning-rates", type=float, nargs="+", default=rates, help="tried on seed 0 (default: 0.03 0.01 0.003)")
    add("--width", type=int, default=64, help="units of each dense layer (default: 64)")
    add("--output", type=pathlib.Path, default="runs/degradation.png", help="picture (default: runs/degradation.png)")
    arguments = parser.parse_args()
    if min(arguments.depths) < 2 or min(arguments.seeds, arguments.steps, arguments.width) < 1:
        parser.error("--depths must be at least 2; --seeds, --steps and --width at least 1")
    return arguments


def make_network(name, depth, width, seed):
    keras.utils.set_random_seed(seed)
    layers, (kind, *bias) = keras.layers, name.split()
    x = inputs = keras.Input((64,))
    for number in range(depth - 1):
        if bias and number:
            x = keras_lt.layers.Highway(transform_gate_bias=float(bias[0]), kernel_initializer="he_normal")(x)
        else:
            block = layers.Dense(width, use_bias=bool(bias), kernel_initializer="he_normal")(x)
            block = layers.ReLU()(block if bias else layers.BatchNormalization(momentum=0.9)(block))
            x = layers.Add()([x, block]) if kind == "residual" and number else block
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile(keras_lt.optimizers.SmoothedRMS(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(model, weights, images, labels, steps, seed, rate):
    """The three `MEASURES`: the gradient is that of the first batch; error and loss are normalised as in training."""
    random, optimizer = np.random.default_rng(seed), model.optimizer
    model.set_weights(weights)
    for variable in optimizer.variables:
        variable.assign(np.zeros(variable.shape))
    for step in range(steps):
        batch = random.choice(len(images), 128, replace=False)
        optimizer.learning_rate = rate * (1 - step / steps)
        model.train_on_batch(images[batch], labels[batch])
        if step == 0:
            first = next(state for state in optimizer.variables if state.name.endswith("smoothed_gradient"))
            gradient = np.linalg.norm(keras.ops.convert_to_numpy(first)) / (1 - optimizer.mu)
    logits = keras.ops.convert_to_numpy(model(images, training=True))
    error, loss = np.mean(logits.argmax(axis=-1) != labels), float(model.loss(labels, logits))
    return 100 * error, np.nan_to_num(loss, nan=np.inf), gradient


def draw(results, depths, path):
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(13, 4), layout="constrained")
    for number, (axes, label) in enumerate(zip(figure.subplots(1, 3), MEASURES, strict=True)):
        for marker, name in zip("os^v", NETWORKS, strict=True):
            values = np.array([results[name, depth][:, number] for depth in depths])
            (line,) = axes.plot(depths, values.mean(axis=1), marker=marker, label=name)
            axes.fill_between(depths, values.min(axis=1), values.max(axis=1), color=line.get_color(), alpha=0.2)
        axes.set(xlabel="depth [dense layers]", ylabel=label, xticks=depths, yscale="log" if number else "linear")
    figure.axes[0].legend(title="Mean and range of seeds\n(highway: bias of its gates)")
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")


def main(arguments):
    (images, labels), _ = keras_lt.datasets.digits(image_size=None)
    data, seeds, results = (images.reshape(-1, 64), labels), range(arguments.seeds), {}
    print("depth  network     rate   {:22}{:22}{} (mean +- deviation)".format(*MEASURES))
    for depth, name in [(depth, name) for depth in arguments.depths for name in NETWORKS]:
        model, *networks = [make_network(name, depth, arguments.width, seed) for seed in (0, *seeds)]
        runs = [(model, network.get_weights(), *data, arguments.steps, seed) for seed, network in enumerate(networks)]
        trials = {rate: train(*runs[0], rate) for rate in arguments.learning_rates}
        _, rate = min((loss, rate) for rate, (_, loss, _) in trials.items())
        results[name, depth] = values = np.array([trials[rate], *(train(*run, rate) for run in runs[1:])])
        cells = [f"{f'{m:.3g} +- {s:.2g}':22}" for m, s in zip(values.mean(axis=0), values.std(axis=0), strict=True)]
        print(f"{depth:5}  {name:10}  {rate:<5g}  {''.join(cells).rstrip()}", flush=True)
    shallow, deep = min(arguments.depths), max(arguments.depths)
    print("Over 1 % more errors, in every seed (S2: plain ones degrade, residual ones not, highway ones do worse):")
    for name in NETWORKS:
        errors = results[name, deep][:, 0]
        changes = errors - results[name, shallow][:, 0], errors - results["residual", deep][:, 0]
        rises, worse = ("yes" if change.min() > 1 else "no" for change in changes)
        print(f"  {name:10}  at depth {deep} than at {shallow}: {rises:3}  than residual at {deep}: {worse}")
    draw(results, sorted(arguments.depths), arguments.output)


if __name__ == "__main__":
    arguments = parse_arguments()
    if not all(map(importlib.util.find_spec, ("matplotlib", "sklearn"))):
        sys.exit('Digits and picture need scikit-learn and matplotlib: pip install "keras_lt[digits, plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
