"""Which keys every token of a text reads, for ``tsallis look``: a page and a table."""


class LookError(Exception):
    """A model or a text is not as it was asked for; the message goes to the user."""
