"""The stream of tasks: class order, tasks, transforms, images, batches."""
