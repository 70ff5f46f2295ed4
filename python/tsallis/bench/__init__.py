"""``tsallis bench``: measures Tsallis against its peers on the machine at hand.

``python -m tsallis bench attention`` is the way in; docs/benchmark.md says what is measured and
what the files hold.
"""
