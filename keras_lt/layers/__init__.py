"""Keras layers: attention, feed-forward, embeddings, the block made of them; highway and residual layers."""

from keras_lt.layers.causal_multi_head_attention import CausalMultiHeadAttention
from keras_lt.layers.cross_attention import CrossAttention
from keras_lt.layers.feed_forward import FeedForward
from keras_lt.layers.highway import Highway
from keras_lt.layers.residual_block import ResidualBlock
from keras_lt.layers.token_position_embedding import TokenPositionEmbedding
from keras_lt.layers.transformer_block import TransformerBlock
