"""Serve policies over HTTP, write the decision log, recommend for whole tables, and export runs as ONNX."""
