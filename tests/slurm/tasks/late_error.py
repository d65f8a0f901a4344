# A config with an error, which rank $LATE_RANK reads some seconds after the others.
import os
import time

_base_ = 'gated.py'
model = {'backbone': {'arch': 'gigantic'}}
if os.environ.get('SLURM_PROCID') == os.environ['LATE_RANK']:
    time.sleep(4)
