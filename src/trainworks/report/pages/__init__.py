"""Results as the pages of a site show them."""
