"""Stands in for PyTorch, torchvision and Pillow: whatever is asked of it does nothing and gives itself."""
import sys


class Anything:
    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _):
        return self

    def __int__(self):
        return 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Module:
    pass


class Network(Anything):
    Module = Module


for name in "torch", "torch.nn.functional", "torchvision", "PIL", "PIL.Image":
    sys.modules[name] = Anything()
sys.modules["torch.nn"] = sys.modules["torch"].nn = Network()
