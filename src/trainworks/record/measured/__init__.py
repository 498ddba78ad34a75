"""What finished runs measured, for the plans of later ones."""
