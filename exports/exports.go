// Package exports is the C layer of libgpreempt.so: every symbol that the library takes over from the CUDA driver
// and from libc. It knows no policy: it calls the hooks of hooks.h, and passes straight through while there are none,
// in children forked after CUDA was initialised, and where GPREEMPT_PRIORITY is unset, empty or "off".
//
// The intercepted functions are listed in table.h alone. A c-shared library that imports this package must be linked
// with exports.map as its version script and with runtime.ld.
package exports

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-parameter -std=gnu11
#cgo LDFLAGS: -ldl -lpthread
#include "layer.h"

static void install_hooks(void *hooks) { gp_install_hooks(hooks); }
static void install_socket_hooks(void *hooks) { gp_install_socket_hooks(hooks); }
static void set_start(void *start) { gp_set_start((void (*)(void))start); }
static void *driver_symbol(void) { return (void *)gp_driver_symbol; }
static void *armed(void) { return (void *)&gp_armed; }
*/
import "C"

import "unsafe"

//go:generate sh -c "sh map.sh > exports.map"

// Install hands the interceptors a struct gp_hooks in C memory, which must stay valid; nil takes it away.
func Install(hooks unsafe.Pointer) { C.install_hooks(hooks) }

// InstallSockets hands the interceptors a struct gp_socket_hooks in C memory, which must stay valid.
func InstallSockets(hooks unsafe.Pointer) { C.install_socket_hooks(hooks) }

// SetStart sets the C function, void (*)(void), that is called once when the program first initialises CUDA.
func SetStart(start unsafe.Pointer) { C.set_start(start) }

// DriverSymbol returns the address of gp_driver_symbol.
func DriverSymbol() unsafe.Pointer { return C.driver_symbol() }

// Armed returns the address of gp_armed.
func Armed() unsafe.Pointer { return C.armed() }
