//! Experiments on the engine, beside the running kernel.
