"""The whole-step bench: a catalogue model's decode step with random weights, as predictions are held against it."""
