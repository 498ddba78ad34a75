#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:ed9681a56d77
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/with space/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/with space"

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch '/runs/with space/demo-1'

#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:632a6b13e863
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/a'; echo foo/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/a'; echo foo"

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch '/runs/a'"'"'; echo foo/demo-1'

#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:e16fc4727b0c
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/\"$(touch x)\"/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/\"$(touch x)\""

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch '/runs/"$(touch x)"/demo-1'

#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:8acc8223bf8d
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/`id` #SBATCH --uid=0/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/`id` #SBATCH --uid=0"

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch '/runs/`id` #SBATCH --uid=0/demo-1'

#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:69136d00736b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/100%%j/demo-1/logs/supervisor.log
#SBATCH --chdir=/runs/100%j

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch /runs/100%j/demo-1

#!/bin/bash
#SBATCH --job-name=demo-1
#SBATCH --comment=trainworks:demo-1:872f9f4997a7
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/grün & */demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/grün & *"

exec /opt/trainworks/bin/python -P -m trainworks.scheduler.slurm.batch '/runs/grün & */demo-1'

#!/bin/bash
#SBATCH --mail-user="\"; rm -rf / #\\"
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
