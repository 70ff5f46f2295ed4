"""Text as tokens, for ``tsallis data prepare --tokenizer`` (src/lab/text/tokenizer.h)."""
