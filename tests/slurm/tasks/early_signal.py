# A training that always gets the time limit's signal before its first step.
import os
import signal
import time

_base_ = 'gated.py'
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(600)
