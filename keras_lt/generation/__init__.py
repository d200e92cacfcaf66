"""How tokens are chosen, and the compiled loop that generates them."""

from keras_lt.generation.beam_search import BeamSearch
from keras_lt.generation.sampler import Sampler
