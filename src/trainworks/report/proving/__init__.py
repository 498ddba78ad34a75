"""What benchmarks, health checks and reviews found."""
