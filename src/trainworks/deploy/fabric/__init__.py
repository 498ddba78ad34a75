"""Files of a cluster's fabric: hosts, switches, subnet manager, and MPI."""
