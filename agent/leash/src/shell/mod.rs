//! The confined shell: what is parsed, what is admitted, what runs.
