"""Finds a data file by name: in the folder that KERAS_LT_DATA names, in Keras's cache, on the internet."""

import hashlib
import os
import socket

import keras

_CONNECTION_SECONDS = 15.0


def find_file(what, name, origin, sha256, otherwise, contents=None):
    """Look for a data file, and compare it with the one that is known.

    Args:
        what: String. What the errors call the data, as the subject of a sentence.
        name: String. Name of the file.
        origin: String. Where on the internet it is.
        sha256: String. SHA-256 of the file.
        otherwise: String. What else can be done where it is not to be had, as the end of a sentence.
        contents: A pair of a function of a path and what it has to return, for data that come packed in several ways.
            Defaults to `None`: a file in `KERAS_LT_DATA` has to have that SHA-256 as well.

    Returns:
        Path of the file.

    Raises:
        FileNotFoundError: If it is nowhere to be found and cannot be downloaded; it says what can be done.
        ValueError: If the file in `KERAS_LT_DATA` is another one.
    """
    folder = os.environ.get("KERAS_LT_DATA")
    if not folder or not os.path.isfile(os.path.join(folder, name)):
        return _cached_or_downloaded(what, name, origin, sha256, otherwise, folder)
    path = os.path.join(folder, name)
    digest, expected = contents or (_sha256, sha256)
    found = digest(path)
    if found != expected:
        raise ValueError(
            f"{path}, found through KERAS_LT_DATA, must be {what}, of SHA-256 {expected}. "
            f"Received: SHA-256 {found}. Replace the file, or give it as `path=` to read it all the same."
        )
    return path


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cached_or_downloaded(what, name, origin, sha256, otherwise, folder):
    timeout = socket.getdefaulttimeout()
    # Keras gives its download no time limit, and a firewall that only swallows packets would hold it for minutes.
    socket.setdefaulttimeout(_CONNECTION_SECONDS)
    try:
        return keras.utils.get_file(name, origin, file_hash=sha256)
    except Exception as error:  # of no class of its own: Keras raises a bare Exception
        raise FileNotFoundError(
            f"{what[:1].upper()}{what[1:]} is not on this machine and could not be downloaded ({error}). Any of these "
            "helps: give the file as `path=`; set the environment variable KERAS_LT_DATA to a folder that holds it as "
            f"{name} (now: {folder!r}); go online once, or put the file from {origin} there; or {otherwise}."
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)
