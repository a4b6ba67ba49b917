// spatial.h - what the kernels of spatial.cu and the programs that launch them share.
#ifndef SPATIAL_H
#define SPATIAL_H

#ifdef __cplusplus
#include <cstdint>
#else
#include <stdint.h>
#endif

// What launches of one stream have in common, in device memory. A launch is named by what `done` is when all of its blocks have
// ended; so launches that share a board must not run side by side.
struct spatial_board {
	uint64_t done;             // blocks that have ended, of all launches
	struct spatial_said *said; // page-locked host memory
	uint32_t width;            // blocks of a gated kernel from this number on do nothing
	uint32_t sleep_ns;         // after each piece of work of a kernel that sleeps
};

// What a launch tells the host. Each word is the launch's name.
struct spatial_said {
	uint64_t begun; // its first block has
	uint64_t ended; // its last block has
};

// Where and when a block ran. Clocks of one SM can be compared, those of different SMs cannot.
struct spatial_record {
	uint64_t begin_ns, end_ns; // the GPU's clock, which may be coarse
	uint64_t begin, end;       // the SM's, in cycles
	uint32_t sm, unused;
};

#endif
