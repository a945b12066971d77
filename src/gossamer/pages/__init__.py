"""Pages and figures made from runs and from the code."""
