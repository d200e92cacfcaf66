import keras


def sum_on_first_replica(gradients):
    """Sum gradients over the replicas of a TensorFlow distribution strategy.

    Keras clips the gradients of each replica and sums them afterwards. Given the sums on one replica and zeros on the
    others, it clips the sums instead, and its own sum leaves them as they are.

    Args:
        gradients: List of tensors or `None`, one a weight: those of this replica.

    Returns:
        The sums on the first replica, zeros on the others; without replicas, `gradients` as they are.
    """
    if keras.config.backend() != "tensorflow":
        return gradients
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return gradients
    present = [gradient for gradient in gradients if gradient is not None]
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if gradient is None else tf.cast(is_first, gradient.dtype) * next(sums) for gradient in gradients]
