// Package worker is the workers in C. A program that imports it is one of them where its arguments say so: worker.c runs
// from a constructor, before the Go runtime starts, and nothing of it is called from Go.
package worker

// #cgo LDFLAGS: -ldl -lm -lpthread
import "C"
