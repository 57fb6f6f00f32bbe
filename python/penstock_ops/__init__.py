"""Before and around a server: plans of hardware, and manifests made of them."""
