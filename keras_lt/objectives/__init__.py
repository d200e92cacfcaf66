from keras_lt.objectives.causal_windows import causal_windows
from keras_lt.objectives.masked import masked
