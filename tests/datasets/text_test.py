import functools
import os
import shutil
import socket
from pydoc_data import topics

import keras
import pytest

from keras_lt.datasets import python_topics, tiny_shakespeare
from testing import SHARED, needs_shared

SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def get_file(*args, **kwargs):
        raise Exception("URL fetch failure on somewhere: None -- [Errno -2] Name or service not known")

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    monkeypatch.delenv("KERAS_LT_DATA", raising=False)


def test_a_path_is_read_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_LT_DATA", str(tmp_path / "elsewhere"))
    path = tmp_path / "mine.txt"
    path.write_bytes("any text,\r\nè 😀\n".encode())
    assert tiny_shakespeare(path) == "any text,\r\nè 😀\n"
    assert tiny_shakespeare(path=str(path)) == "any text,\r\nè 😀\n"


def test_wrong_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        tiny_shakespeare(tmp_path / "nothing.txt")
    path = tmp_path / "latin.txt"
    path.write_bytes("déjà".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt.*UTF-8.*0xe9 at 1"):
        tiny_shakespeare(path)


@needs_shared
def test_folder_of_the_environment(monkeypatch):
    monkeypatch.setenv("KERAS_LT_DATA", str(SHARED / "data"))
    text = tiny_shakespeare()
    assert len(text) == 1_115_394
    assert len(set(text)) == 65
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n")


def test_another_text_in_the_folder_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "tinyshakespeare.txt").write_text("Second Citizen:")
    monkeypatch.setenv("KERAS_LT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=f"KERAS_LT_DATA.*{SHA256}.*path="):
        tiny_shakespeare()


@pytest.mark.parametrize("folder", [None, "", "empty"])
def test_otherwise_keras_is_asked_once(tmp_path, monkeypatch, folder):
    (tmp_path / "empty").mkdir()
    if folder is not None:
        monkeypatch.setenv("KERAS_LT_DATA", str(tmp_path / folder) if folder else "")
    calls = []

    def get_file(fname, origin, file_hash):
        calls.append((fname, origin, file_hash, socket.getdefaulttimeout()))
        (tmp_path / fname).write_text("downloaded")
        return str(tmp_path / fname)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    before = socket.getdefaulttimeout()
    assert tiny_shakespeare() == "downloaded"
    [(fname, origin, file_hash, timeout)] = calls
    assert fname == "tinyshakespeare.txt"
    assert origin.startswith("https://")
    assert origin.endswith("/char-rnn/master/data/tinyshakespeare/input.txt")
    assert file_hash == SHA256
    assert 0 < timeout <= 30
    assert socket.getdefaulttimeout() == before


@needs_shared
def test_the_cache_of_keras_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("KERAS_LT_DATA", raising=False)
    monkeypatch.setattr(keras.utils, "get_file", functools.partial(keras.utils.get_file, cache_dir=str(tmp_path)))
    (tmp_path / "datasets").mkdir()
    shutil.copy(SHARED / "data" / "tinyshakespeare.txt", tmp_path / "datasets" / "tinyshakespeare.txt")
    assert len(tiny_shakespeare()) == 1_115_394
    assert os.listdir(tmp_path / "datasets") == ["tinyshakespeare.txt"]


@pytest.mark.parametrize("failure", [Exception("no route"), TimeoutError("timed out"), ValueError("corrupted file")])
def test_offline_the_error_names_the_ways_out(monkeypatch, failure):
    def get_file(*args, **kwargs):
        raise failure

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    before = socket.getdefaulttimeout()
    with pytest.raises(FileNotFoundError) as error:
        tiny_shakespeare()
    for words in (str(failure), "path=", "KERAS_LT_DATA", "tinyshakespeare.txt", "https://", "python_topics()"):
        assert words in str(error.value)
    assert error.value.__suppress_context__
    assert error.value.__cause__ is None
    assert socket.getdefaulttimeout() == before


def test_python_topics():
    text = python_topics()
    assert text == python_topics()
    assert len(text) > 400_000
    assert text.startswith('The "assert" statement\n')
    assert text.endswith("\n")
    place = 0
    for name in sorted(topics.topics):
        place = text.index(topics.topics[name].strip(), place)
    assert sum(map(len, topics.topics.values())) * 0.99 < len(text) < sum(map(len, topics.topics.values())) * 1.01
