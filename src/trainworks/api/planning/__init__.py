"""Plans of workloads on described clusters."""
