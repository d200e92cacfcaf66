"""What a user would pick instead of keras_lt: the same small GPT, and LeNet-5, written for other libraries."""
