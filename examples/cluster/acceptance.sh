#!/bin/bash
# Bandwidth and latency of two nodes, then of all: `acceptance.sh SERVER`, in an allocation of several nodes.
set -euo pipefail
server=$1

# On the server the same without its name. Gb/s, as the rate of the port is given: 200 for HDR, 400 for NDR.
for adapter in mlx5_0 mlx5_1; do
    ib_send_bw -d "$adapter" --report_gbits --size=65536 --iters=5000 "$server"
    ib_send_lat -d "$adapter" --size=2 --iters=5000 "$server"
done

# One process per GPU over all nodes. The bus bandwidth cannot exceed the adapters of a node together.
srun --mpi=pmix --gpus-per-node=8 --ntasks-per-node=8 all_reduce_perf -b 8M -e 16G -f 2 -g 1

# The same figures against their bounds: trainworks plan --on "4 nodes of 8x H100 over 8x NDR" run.yaml
