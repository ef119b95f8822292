"""The DeepSeek V4.1 architecture at small width, written for training (model.md, speculative.md §1)."""
