"""How large the numbers of a config may be. Beyond these it is a slip, and memory would end before Python."""

MAX_WIDTH = 2**14
MAX_DEPTH = 1000
MAX_MLP_RATIO = 64
MAX_IMAGE = 2**14
MAX_WINDOW = 1024
MAX_REDUCTION = 64
MAX_KERNEL = 63
MAX_POWER = 16
MAX_ITERATIONS = 100
