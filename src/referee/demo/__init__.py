"""The story that `make demo` tells, its page, and the runs that are compared in it and in the benchmarks."""
