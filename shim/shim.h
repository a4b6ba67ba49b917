// shim.h - what the library's Go side calls of the interception layer, and of itself.
#ifndef GPREEMPT_SHIM_H
#define GPREEMPT_SHIM_H

#include "exports/exports.h"

void gpreemptStart(void); // main.go
typedef void (*gp_start_fn)(void);

static inline void *gp_driver_symbol_pointer(void) { return (void *)gp_driver_symbol; }
static inline void *gp_armed_pointer(void) { return (void *)&gp_armed; }
static inline void *gp_substitute_pointer(void) { return (void *)gp_substitute; }
const void *gp_library_notes(size_t *bytes); // the library's notes, the linker's hash of its contents among them

#endif
