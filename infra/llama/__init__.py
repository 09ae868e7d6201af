"""A real small model on this machine: llama.cpp's OpenAI-compatible server, from prebuilt wheels."""
