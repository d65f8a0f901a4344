"""Export to files that run without this package: ONNX, OpenVINO, torch.export and AOTInductor."""
