"""Exchange with other programs: weights of the original TD3, ONNX and pt2 files, and `Policy`.

`Policy` acts from an ONNX file without PyTorch, so files on its way import it only when they use it. Nothing here
trains.
"""
