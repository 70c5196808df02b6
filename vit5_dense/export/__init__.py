"""ONNX files of whole models, in standard operators; ``vit5_dense.runtime`` runs them."""
