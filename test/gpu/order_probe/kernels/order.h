// order.h - what the kernels of order.cu and the program that launches them share.
#ifndef ORDER_KERNELS_H
#define ORDER_KERNELS_H

#ifdef __cplusplus
#include <cstdint>
#else
#include <stdint.h>
#endif

enum {
	ORDER_THREADS = 256,    // of a block of the spinner
	ORDER_RESIDENT = 8,     // such blocks that fit on an SM at least
	ORDER_BLOCKS = 1 << 13, // of the spinner at most
	ORDER_WAITERS = 32,
	ORDER_SMS = 1024,
};

// Page-locked host memory. The host writes the first two words, the kernels the others. Each block has a word of its own, since not
// every bus carries atomics.
struct order_words {
	uint32_t release;               // waiters end
	uint32_t abort;                 // everything ends
	uint32_t begun[ORDER_WAITERS];  // 1 + the number of the SM that a waiter is on
	uint32_t arrived[ORDER_BLOCKS]; // 1: that block of the spinner has begun
};

#endif
