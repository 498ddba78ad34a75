#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch /shared/runs/demo-1
