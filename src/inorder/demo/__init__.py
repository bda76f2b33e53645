"""The programs behind `inorder demo`."""
