"""A recurrent network has to remember the first symbol of a row: with and without clipping its gradients.

S2: powers of `w_2` make gradients explode or vanish; `g <- min(1, theta / |g|) g` answers the first. An RNN with relu,
`w_2` from the identity, reads one of four symbols, 29 others and a question mark, and has to name the first.

python examples/gradient_clipping.py                                           # two minutes on two CPU cores
python examples/gradient_clipping.py --thresholds inf --learning-rate 0.0003   # does a small rate do, too?
"""

import argparse
import importlib.util
import math
import pathlib
import sys

DISTANCE = 30  # steps from the symbol to the question


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, thetas, picture = parser.add_argument, [math.inf, 10.0, 1.0, 0.1], "runs/gradient_clipping.png"
    add("--thresholds", type=float, nargs="+", default=thetas, help="theta (default: inf, that is none, 10 1 0.1)")
    add("--learning-rate", type=float, default=0.03, help="of every run (default: 0.03)")
    add("--steps", type=int, default=800, help="batches of 64 (default: 800)")
    add("--seeds", type=int, default=3, help="number of seeds, of weights and batches (default: 3)")
    add("--output", type=pathlib.Path, default=picture, help=f"picture (default: {picture})")
    arguments = parser.parse_args()
    if min(arguments.thresholds) <= 0 or min(arguments.steps, arguments.seeds) < 1:
        parser.error("--thresholds must be above 0, --steps and --seeds at least 1")
    return arguments


def make_model(seed, phi="relu", initializer="identity"):
    keras.utils.set_random_seed(seed)
    return keras_lt.models.RecurrentLM(4 + DISTANCE, "rnn", 1, 64, phi, recurrent_initializer=initializer)


def make_optimizer(rate, theta):
    class RecordingSGD(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.gradient_norm = self.add_variable((), "zeros", dtype="float32", name="gradient_norm")

        def apply(self, grads, trainable_variables=None):
            grads = [keras.ops.add(gradient, 0.0) for gradient in grads]  # TensorFlow's of a table is sparse
            self.gradient_norm.assign(sum(keras.ops.sum(gradient**2) for gradient in grads) ** 0.5)
            super().apply(grads, trainable_variables)

    return RecordingSGD(rate, global_clipnorm=None if math.isinf(theta) else theta)


def make_batch(random, size):
    """Ids, targets, weights: a symbol, 29 others, each of them once, a question mark; only the last target counts."""
    first, others = random.integers(4, size=(size, 1)), np.tile(np.arange(4, DISTANCE + 3), (size, 1))
    x = np.hstack([first, random.permuted(others, axis=1), np.full((size, 1), DISTANCE + 3)]).astype("int32")
    is_last = np.tile(np.arange(DISTANCE + 1) == DISTANCE, (size, 1))
    return x, first * is_last, is_last.astype("float32")


def train(seed, theta, steps, rate):
    """The model, and of each step the loss and the norm of the gradient before it is clipped."""
    model, random, record = make_model(seed), np.random.default_rng(seed), []
    model.compile(make_optimizer(rate, theta))
    while len(record) < steps and np.isfinite(record).all():
        record.append((float(model.train_on_batch(*make_batch(random, 64))), float(model.optimizer.gradient_norm)))
    return model, np.array(record)


def reach(model):
    """Norm of the gradient with respect to what was read 0, 1, ... steps ago, the mean of 16 rows."""
    random, norms = np.random.default_rng(0), []
    model.compile(keras_lt.optimizers.SmoothedRMS(0.0, mu=0.0))  # moves nothing; its average is the gradient itself
    for x, *targets in [make_batch(random, 1) for _ in range(16)]:
        model.train_on_batch(x, *targets)
        (table,) = (v.numpy() for v in model.optimizer.variables if v.name.endswith("embeddings_smoothed_gradient"))
        norms.append(np.linalg.norm(table[x[0, ::-1]], axis=1))  # no id comes twice: each row is that of one step
    return np.mean(norms, axis=0)


def main(arguments):
    from matplotlib.figure import Figure

    x, y, _ = make_batch(np.random.default_rng(0), 1000)
    loss, norm, back = Figure(figsize=(14, 4), layout="constrained").subplots(1, 3)
    print("theta  seed  steps  last loss  right   largest gradient norm")
    for number, theta in enumerate(arguments.thresholds):
        for seed in range(arguments.seeds):
            model, record = train(seed, theta, arguments.steps, arguments.learning_rate)
            for axes, values in zip((loss, norm), record.T, strict=True):
                axes.plot(values, f"C{number}", lw=0.7, label=None if seed else f"theta {theta:g}")
            right = np.mean(keras.ops.convert_to_numpy(model(x))[:, -1].argmax(axis=-1) == y[:, -1])
            row = f"{theta:5g}  {seed:4}  {len(record):5}  {record[-1, 0]:9.2g}  {right:6.1%}"
            print(f"{row}  {np.nanmax(record[:, 1]):.2g}", flush=True)
    models = {"relu, after a step without clipping": train(0, math.inf, 1, arguments.learning_rate)[0]}
    for phi, w_2 in (("relu", "identity"), ("tanh", "orthogonal"), ("sigmoid", "orthogonal")):
        models[f"{phi}, w_2 {w_2}, untrained"] = make_model(0, phi, w_2)
    for name, norms in zip(models, map(reach, models.values()), strict=True):
        back.plot(norms, label=name)
        print(f"{name}: the gradient {DISTANCE} steps ago is {norms[-1] / norms[0]:.2g} times that of the last step")
    loss.set(xlabel="step", ylabel="loss [nats]", yscale="log", ylim=(1e-6, 1e3))  # what diverges leaves at the top
    norm.set(xlabel="step", ylabel="gradient norm before clipping", yscale="log", ylim=(1e-4, 1e6))
    back.set(xlabel="steps ago", ylabel="gradient norm of what was read", yscale="log")
    loss.legend(), norm.legend(), back.legend()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    loss.figure.savefig(arguments.output, dpi=120)
    print(f"drawn in {arguments.output}")


if __name__ == "__main__":
    arguments = parse_arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
