"""Softmax language models made sparse, for ``tsallis convert`` (docs/guide/real-model.md)."""


class ConvertError(Exception):
    """A model, a text or a run is not as it was asked for; the message goes to the user."""
