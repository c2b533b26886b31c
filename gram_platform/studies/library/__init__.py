"""The studies and searches of the paper and of ours, one file each: the question, the methods, the presets."""
