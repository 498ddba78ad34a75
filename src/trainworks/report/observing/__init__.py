"""What is watched, as documents."""
