from keras_lt.objectives.causal_windows import causal_windows
from keras_lt.objectives.masked import masked
from keras_lt.objectives.pack import pack
from keras_lt.objectives.pairs import pairs
from keras_lt.objectives.span_corruption import span_corruption
