"""The BytePS plugin: autoload, native hook, agent and the front ends."""
