"""Where a ViT would be."""
