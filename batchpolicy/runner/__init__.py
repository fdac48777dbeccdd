"""What an adapter holds: events in, one plan a step out, whatever the policy does."""
