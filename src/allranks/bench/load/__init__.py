"""Load on an endpoint that speaks OpenAI's API, ours or a peer's: who asks when, and what clients see."""
