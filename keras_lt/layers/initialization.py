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


def projection_initializer(initializer, parts):
    """Initialise a kernel as the matrices that lie in it side by side, each with the variance it would have alone.

    Keras takes the whole kernel for one matrix, which is not right for several projections fused into one.

    Args:
        initializer: Keras initializer.
        parts: List of integers. How many of the columns belong to each matrix.

    Returns:
        A function of a shape and a dtype, as Keras expects of an initializer.
    """

    def initialize(shape, dtype=None):
        kernels = [
            spawn_initializer(initializer, number)((shape[0], part), dtype=dtype) for number, part in enumerate(parts)
        ]
        return kernels[0] if len(kernels) == 1 else ops.concatenate(kernels, axis=1)

    return initialize
