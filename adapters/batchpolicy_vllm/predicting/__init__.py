"""What a predictor beside the vLLM scheduler costs its steps."""
