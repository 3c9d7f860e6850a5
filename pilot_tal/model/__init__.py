"""After the training: a run's model loaded, used on new images, and written as a folder of its own."""
