// How the kernels of fill.cu are launched. Included by them and by the launch path.
#ifndef GPREEMPT_FILL_H
#define GPREEMPT_FILL_H

enum {
	FILL_THREADS = 256,  // Threads of a block.
	FILL_SEGMENT = 4096, // Bytes of a row that one warp fills, from the row's address rounded down to 16 bytes.
	FILL_UNITS = 2048,   // Elements of a block, in narrow rows.
	FILL_NARROW = 256,   // Bytes: rows below this are narrow.
};

#endif
