// Package kernels holds the project's own GPU code, compiled and embedded, so that neither building
// nor running needs a CUDA toolkit. generate.sh makes the .fatbin files from the .cu files.
package kernels

import _ "embed"

// Hold is the module with gpreempt_hold, the kernel that keeps the GPU with a latency-critical process between two of its
// kernels.
//
//go:embed hold.fatbin
var Hold []byte

// Fill is the module with kernels for memsets and copies within device memory, for processes whose work can be stopped
// between blocks.
//
//go:embed fill.fatbin
var Fill []byte

// Bench is the module with the kernels of gpreempt bench.
//
//go:embed bench.fatbin
var Bench []byte
