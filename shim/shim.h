// shim.h - what the library's Go side calls of its C side.
#ifndef GPREEMPT_SHIM_H
#define GPREEMPT_SHIM_H

#include "exports/exports.h"
#include "preempt/far/calls.h"

void gpreemptHelper(int pid, char *name, void *page); // main.go
const void *gp_library_notes(size_t *bytes); // the library's notes, the linker's hash of its contents among them

#endif
