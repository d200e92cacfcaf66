"""The equations of the sources as pure functions on `keras.ops`."""

from keras_lt.ops.activations import gelu, gelu_tanh
from keras_lt.ops.attention import attend, attention_weights, dot_product_attention
from keras_lt.ops.bayes import bayes_posterior
from keras_lt.ops.cache import update_cache
from keras_lt.ops.cross_entropy import cross_entropy
from keras_lt.ops.highway import highway
from keras_lt.ops.ids import is_id, nan_unless
from keras_lt.ops.images import from_channels_last, scale_pixels, to_channels_last, zero_padding_shortcut
from keras_lt.ops.local_attention import local_attention
from keras_lt.ops.masks import causal_mask, combine_masks, expand_mask, expand_padding_mask
from keras_lt.ops.normalization import standardize
from keras_lt.ops.positions import rotary_embedding, sinusoidal_positions
from keras_lt.ops.smoothing import smooth
from keras_lt.ops.token_weights import token_weights
