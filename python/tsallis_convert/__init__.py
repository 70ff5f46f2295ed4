"""Softmax language models made sparse, for ``tsallis convert`` (docs/real-model.md)."""
