"""What the services run on: brokers, images, deployment files."""
