"""Tables to plotly figures: pure functions that draw the numbers they are given and compute none."""
