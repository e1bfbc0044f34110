"""wmtp-sim: what a speculative decoding step costs, and what it gains, before it is deployed."""

__version__ = "0.1.0"
