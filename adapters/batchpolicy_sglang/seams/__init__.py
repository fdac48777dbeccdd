"""Everything of SGLang that the adapter touches, and nothing else does."""
