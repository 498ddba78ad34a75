from trainworks.api.calibrate import calibrate as calibrate
from trainworks.api.capacity import capacity as capacity
from trainworks.api.catalog import catalog as catalog
from trainworks.api.cost import cost as cost
from trainworks.api.goodput import goodput as goodput
from trainworks.api.network import network as network
from trainworks.api.plan import compare_layout as compare_layout
from trainworks.api.plan import plan as plan
from trainworks.api.score import score as score
from trainworks.api.size import size as size
from trainworks.api.storage import storage as storage

__version__: str
