"""From stored results to numbers: frames, compute ratios, intervals, laws, tables and claims; it trains nothing."""
