"""Measures a broker from outside, over its wire protocol; knows nothing of inorder's modules."""
