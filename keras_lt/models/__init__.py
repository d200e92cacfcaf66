"""Keras models, and their named sizes."""

from keras_lt.models import presets
from keras_lt.models.highway_network import HighwayNetwork
from keras_lt.models.lenet import LeNet
from keras_lt.models.little_transformer import LittleTransformer
from keras_lt.models.recurrent_lm import RecurrentLM
from keras_lt.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_lt.models.resnet import ResNet
from keras_lt.models.transformer_encoder import TransformerEncoder
from keras_lt.models.transformer_seq2seq import TransformerSeq2Seq
