package main

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
// #cgo CFLAGS: -Wno-unused-parameter
// #cgo LDFLAGS: -ldl
import "C" // for probe.c; cgo's own C for a void function has an unused parameter
