"""Search for settings that meet an operator's targets."""
