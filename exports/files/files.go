// Package files gives the program back its limit of open files, which package syscall raises at its initialisation. Go initialises this package
// right behind that one, which is all that it imports.
package files

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../../build/exports.a -ldl -lpthread
// #include "exports/exports.h"
import "C"

func init() { C.gp_give_back_files() }
