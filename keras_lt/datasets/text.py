import os

from keras_lt.datasets.lookup import find_file

_SHAKESPEARE_NAME = "tinyshakespeare.txt"
_SHAKESPEARE_ORIGIN = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def tiny_shakespeare(path: str | os.PathLike | None = None) -> str:
    """Reads tiny Shakespeare: 1,115,394 characters, 65 of them distinct, from Shakespeare's plays.

    It is looked for in this order: at `path`; as `tinyshakespeare.txt` in the folder that the environment variable
    `KERAS_LT_DATA` names; in the cache of Keras (`~/.keras/datasets`); on the internet, from where it is downloaded
    once into that cache. What is found is compared with the known SHA-256 of the text, except at `path`: that file is
    the caller's own choice, and may be a part of the text, or another text.

    Args:
        path: Path of a text file in UTF-8. Defaults to `None`: found or downloaded as said above.

    Returns:
        The text, line ends as they are in the file.

    Raises:
        FileNotFoundError: If there is no file at `path`, or if the text is nowhere to be found and cannot be
            downloaded; it says what can be done.
        ValueError: If the file at `path` is not in UTF-8, or the one in `KERAS_LT_DATA` is another text.

    Example:

    ```python
    text = keras_lt.datasets.tiny_shakespeare()
    text[:14]  # 'First Citizen:'
    ```
    """
    if path is None:
        path = find_file(
            "tiny Shakespeare",
            _SHAKESPEARE_NAME,
            _SHAKESPEARE_ORIGIN,
            _SHAKESPEARE_SHA256,
            "use the text that comes with Python, keras_lt.datasets.python_topics()",
        )
    with open(path, "rb") as file:
        content = file.read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{os.fspath(path)} must be a text in UTF-8. Received: byte {content[error.start]:#04x} at {error.start}"
        ) from None


def python_topics() -> str:
    """Reads the English text that comes with Python itself: what `help()` says on each topic of the language.

    About 460,000 characters, there on every machine without a download; a little different in each version of Python.

    Returns:
        The topics in alphabetical order, one blank line apart.

    Example:

    ```python
    text = keras_lt.datasets.python_topics()
    text[:22]  # 'The "assert" statement'
    ```
    """
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name].strip("\n") for name in sorted(topics.topics)) + "\n"
