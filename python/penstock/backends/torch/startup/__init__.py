"""Before the first request: kernels compiled and chosen, warm-up, memory measured."""
