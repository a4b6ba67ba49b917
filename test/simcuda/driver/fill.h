// fill.h - a block of each kernel of kernels/fill.cu, with their arguments in order. It does not include sim.h,
// since cpu.h defines names of CUDA.
#ifndef SIM_FILL_H
#define SIM_FILL_H

#include <stdint.h>

void fill_block(const uint64_t *argument, uint64_t number);
void copy_block(const uint64_t *argument, uint64_t number);
void fill_narrow_block(const uint64_t *argument, uint64_t number);
void copy_narrow_block(const uint64_t *argument, uint64_t number);

#endif
