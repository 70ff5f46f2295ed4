"""What a long command shows while it works."""

from __future__ import annotations

import sys


class Screen:
    """Lines of progress on standard error: in place on a terminal, else now and then."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.live = sys.stderr.isatty()
        self.lines = 0

    def step(self, line: str) -> None:
        self.lines += 1
        if self.quiet or not (self.live or self.lines % 10 == 1):
            return
        end = "\r" if self.live else "\n"
        print(f"\x1b[K{line}" if self.live else line, end=end, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        if not self.quiet:
            print(f"\x1b[K{line}" if self.live else line, file=sys.stderr, flush=True)
