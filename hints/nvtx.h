// nvtx.h - NVTX ranges with configured names, as announcements of work.
#ifndef GPREEMPT_NVTX_H
#define GPREEMPT_NVTX_H

#include <stdint.h>

// Sets the name of range i. To be called before hints are given.
void gp_nvtx_name(uint32_t i, const char *name);

#endif
