// How the kernels of fill.cu are launched. Included by them and by the launch path.
#ifndef GPREEMPT_FILL_H
#define GPREEMPT_FILL_H

enum {
	FILL_THREADS = 256,  // of a block
	FILL_SEGMENT = 4096, // bytes of a row that one warp fills, from the row's address rounded down to 16 bytes
	FILL_UNITS = 2048,   // of a block, in narrow rows
	FILL_NARROW = 256,   // bytes: rows below this are narrow
};

#endif
