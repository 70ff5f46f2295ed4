"""Softmax language models made sparse, for ``tsallis convert`` (docs/guide/real-model.md)."""

# entmax: one alpha, and softened queries (`train.softening`). softmax: the same tokens with
# softmax. learned: as entmax, and every head learns its own alpha between 1 and 2. annealed: alpha
# rises from 1, and queries stay as they are.
METHODS = ("entmax", "softmax", "learned", "annealed")


class ConvertError(Exception):
    """A model, a text or a run is not as it was asked for; the message goes to the user."""
