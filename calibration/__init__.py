"""Measuring a GPU: the only place that imports torch. The cost model in `wmtp_sim` never imports it."""
