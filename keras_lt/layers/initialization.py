import math

from keras import initializers, ops


def spawn_initializer(initializer, number):
    """A copy of an initializer that draws other numbers, so that no two weights of a model start as equals.

    Args:
        initializer: Keras initializer.
        number: Integer that tells the copies apart. A seed that is a number is raised by it; an initializer without a
            seed is given a new one; one that draws from a `keras.random.SeedGenerator` stays as it is.

    Returns:
        An initializer.
    """
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    if isinstance(config.get("seed"), int):
        return type(initializer).from_config({**config, "seed": config["seed"] + number})
    return initializers.get(initializer).clone() if config.get("seed", 0) is None else initializer


def spawn_seed(seed, number):
    """A seed for one of several layers that must not drop the same places.

    Args:
        seed: Integer or `None`.
        number: Integer that tells the layers apart.

    Returns:
        An integer, or `None` for `None`.
    """
    return None if seed is None else seed + number


def projection_initializer(initializer, parts, axis):
    """Initialise a kernel of rank 3 as the matrices it consists of, each with the variance it would have alone.

    Keras reads the two last axes of a kernel as its fans, which is neither right for a kernel with a head axis nor for
    several projections fused into one.

    Args:
        initializer: Keras initializer.
        parts: List of integers. How many heads (or units) of `axis` belong to each matrix.
        axis: Integer. 1 for a kernel `(input, heads, head_dim)`, whose parts are the matrices
            `(input, part * head_dim)`; 0 for `(heads, head_dim, output)`, whose parts are `(part * head_dim, output)`.

    Returns:
        A function of a shape and a dtype, as Keras expects of an initializer.
    """

    def initialize(shape, dtype=None):
        kernels = []
        for number, part in enumerate(parts):
            part_shape = (*shape[:axis], part, *shape[axis + 1 :])
            rows = part_shape[0] if axis else math.prod(part_shape[:2])
            matrix = (rows, math.prod(part_shape) // rows)
            kernels.append(ops.reshape(spawn_initializer(initializer, number)(matrix, dtype=dtype), part_shape))
        return kernels[0] if len(kernels) == 1 else ops.concatenate(kernels, axis=axis)

    return initialize
