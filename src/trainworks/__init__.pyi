from trainworks.api.calibrate import calibrate as calibrate
from trainworks.api.capacity import capacity as capacity
from trainworks.api.catalog import catalog as catalog
from trainworks.api.cost import cost as cost
from trainworks.api.goodput import goodput as goodput
from trainworks.api.jobs import describe as describe
from trainworks.api.jobs import drain as drain
from trainworks.api.jobs import find_job as find_job
from trainworks.api.jobs import hold as hold
from trainworks.api.jobs import jobs as jobs
from trainworks.api.jobs import nodes as nodes
from trainworks.api.jobs import release as release
from trainworks.api.jobs import retry as retry
from trainworks.api.jobs import stop as stop
from trainworks.api.network import network as network
from trainworks.api.plan import compare_layout as compare_layout
from trainworks.api.plan import plan as plan
from trainworks.api.run_handle import find_run as find_run
from trainworks.api.run_handle import runs as runs
from trainworks.api.runs import report as report
from trainworks.api.runs import resume as resume
from trainworks.api.runs import run as run
from trainworks.api.runs import submit as submit
from trainworks.api.score import score as score
from trainworks.api.size import size as size
from trainworks.api.storage import storage as storage

__version__: str
