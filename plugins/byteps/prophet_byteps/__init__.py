"""The BytePS plugin: autoload, native hook, agent and the PyTorch front end."""
