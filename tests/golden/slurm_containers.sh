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

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch /shared/runs/demo-1 '--container-image=nvcr.io#nvidia/pytorch:26.09-py3' --container-mounts=/shared/runs/demo-1:/shared/runs/demo-1,/home/ada:/home/ada,/data:/data,/scratch:/tmp/scratch -- python3

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

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch /shared/runs/demo-1 -- apptainer exec --nv --bind /shared/runs/demo-1:/shared/runs/demo-1 --bind /home/ada:/home/ada --bind /data:/data --bind /scratch:/tmp/scratch docker://nvcr.io/nvidia/pytorch:26.09-py3 python3
