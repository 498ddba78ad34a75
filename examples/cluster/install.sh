#!/bin/bash
# A node of GPUs with Ubuntu 24.04: driver, fabric manager, peer memory, and PyTorch.
set -euo pipefail

# The driver is all that a node needs: PyTorch brings CUDA, cuDNN and NCCL in its wheels.
# Only boards with NVSwitch need the fabric manager; without it, none of their GPUs starts.
apt-get update
apt-get install --yes nvidia-headless-580-server-open nvidia-utils-580-server nvidia-fabricmanager-580
systemctl enable --now nvidia-fabricmanager

# Without peer memory, data between adapter and GPU passes through the memory of the host.
modprobe nvidia-peermem
echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf

python3 -m venv /opt/torch
/opt/torch/bin/pip install torch --index-url https://download.pytorch.org/whl/cu128
