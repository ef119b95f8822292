"""deepinfer: its libraries from Python. Each is a module of its own: `from deepinfer import codec`."""
