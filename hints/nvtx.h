// nvtx.h - NVTX ranges with configured names: announcements of work, and steps of an engine.
#ifndef GPREEMPT_NVTX_H
#define GPREEMPT_NVTX_H

#include <stdint.h>

// Sets the name of range i, which announces work, or of the range whose end is a step's (gpreempt_step). Then gp_nvtx_named makes the
// names known: to be called once, before hints are given.
void gp_nvtx_name(uint32_t i, const char *name);
void gp_nvtx_name_step(const char *name);
void gp_nvtx_named(void);

// For a program that has found another tool's InitializeInjectionNvtx2: one that calls it, and then stands in front of its functions.
void *gp_nvtx_beside(void *found);

#endif
