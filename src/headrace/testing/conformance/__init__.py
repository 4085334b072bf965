"""One suite per seam: what every implementation promises."""
