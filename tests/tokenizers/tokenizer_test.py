import json

import keras
import numpy as np
import pytest

from keras_lt.tokenizers import BytePairTokenizer, ByteTokenizer, CharTokenizer, Tokenizer


@keras.saving.register_keras_serializable(package="tokenizer_test")
class WordTokenizer(Tokenizer):
    """What a user might write: one id a word."""

    def __init__(self, words):
        self.words = tuple(words)

    @property
    def vocabulary_size(self):
        return len(self.words)

    def encode(self, text):
        return np.array([self.words.index(word) for word in text.split()], "int32")

    def decode_bytes(self, ids):
        return " ".join(self.words[token_id] for token_id in ids).encode("utf-8")

    def get_config(self):
        return {"words": self.words}


class Unregistered(ByteTokenizer):
    pass


TOKENIZERS = [
    CharTokenizer("zaé"),
    ByteTokenizer(),
    BytePairTokenizer([(98, 99), (97, 257)], special_tokens=["<end>"]),
    WordTokenizer(["naïve", "words"]),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: type(tokenizer).__name__)
def test_base_class_loads_every_tokenizer(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert type(loaded) is type(tokenizer)
    assert loaded == tokenizer
    assert hash(loaded) == hash(tokenizer)
    assert type(tokenizer).load(tmp_path / "tokenizer.json") == tokenizer


def test_every_class_refuses_the_files_of_the_others(tmp_path):
    for tokenizer in TOKENIZERS:
        tokenizer.save(tmp_path / "tokenizer.json")
        for other in {type(other) for other in TOKENIZERS} - {type(tokenizer)}:
            with pytest.raises(ValueError, match=f"hold a {other.__name__}. Received: a {type(tokenizer).__name__}"):
                other.load(tmp_path / "tokenizer.json")


def test_a_class_that_is_not_registered_loads_its_own_files_only(tmp_path):
    path = tmp_path / "tokenizer.json"
    Unregistered().save(path)
    assert type(Unregistered.load(path)) is Unregistered
    with pytest.raises(ValueError, match=r"a Tokenizer\. Received: a Unregistered.*register_keras_serializable"):
        Tokenizer.load(path)
    with keras.saving.custom_object_scope({"Unregistered": Unregistered}):
        assert type(Tokenizer.load(path)) is Unregistered
        assert type(ByteTokenizer.load(path)) is Unregistered


def test_a_class_of_a_module_that_is_not_imported_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    WordTokenizer(["a"]).save(path)
    path.write_text(path.read_text().replace("tokenizer_test", "elsewhere"))
    with pytest.raises(ValueError, match="must hold a Tokenizer. Received: a WordTokenizer") as error:
        Tokenizer.load(path)
    for words in ["Import the module", "'elsewhere>WordTokenizer'"]:
        assert words in str(error.value)


def test_load_of_something_else(tmp_path):
    path = tmp_path / "other.json"
    contents = [
        *("", "null", "[]", '{"class_name": "CharTokenizer"}'),
        '{"class_name": "CharTokenizer", "registered_name": "keras_lt>CharTokenizer"}',
        '{"class_name": "A", "registered_name": [], "config": {}}',
    ]
    for content in contents:
        path.write_text(content)
        with pytest.raises(ValueError, match=r"other\.json must hold a Tokenizer\. Received: no saved tokenizer"):
            Tokenizer.load(path)
    path.write_text(json.dumps(keras.saving.serialize_keras_object(keras.layers.Dense(3))))
    with pytest.raises(ValueError, match="must hold a Tokenizer. Received: a Dense"):
        Tokenizer.load(path)


def test_decode_replaces_what_is_no_utf8():
    class Broken(Tokenizer):
        def decode_bytes(self, ids):
            return b"a\xff\xe2\x82"

    assert Broken().decode([]) == "a\ufffd\ufffd"


def test_what_a_subclass_has_to_define():
    for use in (lambda t: t.encode("a"), lambda t: t.decode_bytes([1]), lambda t: t.vocabulary_size):
        with pytest.raises(NotImplementedError, match="Tokenizer must define"):
            use(Tokenizer())
