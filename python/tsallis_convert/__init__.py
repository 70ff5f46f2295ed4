"""Softmax language models made sparse, for ``tsallis convert`` (docs/guide/real-model.md)."""
