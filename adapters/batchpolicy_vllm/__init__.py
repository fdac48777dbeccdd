"""batchpolicy in the real vLLM scheduler."""
