"""The break-even explorer: a cost table over context, depth, window and batch, and the page that plays with it."""
