//! Whole-system tests: real processes, real Apptainer. The harness they share.
