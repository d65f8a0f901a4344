"""Trained models as files that run without this package: ONNX, torch.export, AOTInductor."""
