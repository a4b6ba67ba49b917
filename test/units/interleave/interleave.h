// interleave.h - for C tests that run the threads of a handshake in every order (interleave.c).
//
// The first line of such a test is // NAME_test.c - interleaved with SOURCE...
#ifndef TEST_INTERLEAVE_H
#define TEST_INTERLEAVE_H

#include "test/units/check.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTERLEAVED = 4 }; // threads at most

// Each run begins with reset, then runs the threads to their ends, then calls check.
struct interleaving {
	const char *name;
	void (*reset)(void);
	void (*run[INTERLEAVED])(void);
	void (*check)(void);
	int preemptions; // how often a thread is interrupted in one run, at most
	// A wait may end by its bound at any time. Otherwise one that nothing else ends is a wake-up that was missed, and the test fails.
	bool bounds;
};

// Runs the threads in every order. Says how many orders that were.
void interleave(const struct interleaving *);

// A point at which a thread of the test may be interrupted. Any access of the sources to an atomic or volatile object is one.
void interleave_point(void);

// Another time of CLOCK_MONOTONIC in this run. It goes on by a nanosecond at each question, and by a wait's bound where that ends.
void interleave_at(uint64_t ns);

#endif
