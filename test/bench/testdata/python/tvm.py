import torch  # which makes this one, too
