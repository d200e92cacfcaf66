def array_dataset(data, batch_size, shuffle):
    """Batches of arrays on TensorFlow, without the autotuning of tf.data, which takes a core.

    Args:
        data: Nested structure of NumPy arrays with one number of rows. Copied.
        batch_size: Positive integer, rows a batch; the last one may be smaller.
        shuffle: Boolean, whether rows come in a random order, another one in every pass.

    Returns:
        A `tf.data.Dataset`.
    """
    import tensorflow as tf

    with tf.device("CPU:0"):
        data = tf.nest.map_structure(tf.constant, data)
    num_rows = len(tf.nest.flatten(data)[0])
    numbers = tf.data.Dataset.range(num_rows)
    if shuffle:
        numbers = numbers.shuffle(num_rows)

    @tf.autograph.experimental.do_not_convert
    def take(rows):
        return tf.nest.map_structure(lambda array: tf.gather(array, rows), data)

    options = tf.data.Options()
    options.autotune.enabled = False
    # They would write the whole data into a graph and read it again, for each pass.
    options.experimental_optimization.apply_default_optimizations = False
    return numbers.batch(batch_size).map(take).prefetch(2).with_options(options)
