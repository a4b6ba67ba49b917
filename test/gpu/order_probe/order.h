// order.h - what the parts of order_probe share. Every case keeps to one rule: what it holds up goes on when a word in host memory
// says so, and a guard says so where the case itself cannot any more.
#ifndef ORDER_PROBE_H
#define ORDER_PROBE_H

#include "kernels/order.h"
#include "test/gpu/probe/probe.h"

// hold.c: what holds places on the SMs, and streams, until it is told to end
enum kernel { SPIN, WAIT, SHORT, SHORT_SHARED, KERNELS };
extern CUfunction kernel[KERNELS];
extern struct gpu {
	int sms, least, greatest; // priorities of streams
	unsigned all;             // blocks of the spinner: as many as fit on the whole GPU
} gpu;
void hold_begin(void);
unsigned resident(enum kernel, unsigned threads); // blocks on an SM
void hold_clear(void);                            // nothing has begun, nothing ends
void hold_release(void);                          // waiters end
void hold_abort(void);                            // everything ends
void waiter_launch(CUstream, unsigned number);
unsigned waiters_begun(unsigned of);
unsigned waiter_sm(unsigned number);                // of one that has begun
void spinner_launch(CUstream, const int *priority); // priority: of the launch, NULL: the stream's
unsigned spinner_arrived(void);                     // blocks that have begun
void guard_set(double ms);             // everything ends after so long, also while a call of ours does not return
bool guard_clear(void);                // whether that came to pass
void need(CUresult, const char *what); // gives up where that was refused

// late.c: a launch that comes when there is no room, in this process or, under MPS, in a second one
enum priority { LEAST, ABOVE_LEAST, GREATEST, OWN, PRIORITIES }; // OWN: the default stream of a green context
enum { LATE_KINDS = 24, LATE_NONE = 0, TINY = 3 };
extern const char *const priority_name[PRIORITIES];
extern const struct late_kind {
	const char *name;
	enum where { ALL, FIRST_16, LAST_16, FIRST_64, LAST_64, GREEN_ALL, PLACES } where;
	enum kernel kernel;
	unsigned threads, cluster; // cluster: blocks of one, 0: none
	unsigned grid, waves;      // blocks, or how often as many as fit there
	bool as_least;             // launched with the least priority as an attribute, whatever the stream has
	bool graph;                // of one node, whose priority is the least, and counts
	unsigned memset;           // bytes; no kernel of ours
} late_kind[LATE_KINDS];
const char *where_name(enum where);
void late_begin(char *const settings[]); // of the second process's environment
void late_serve(void);
const char *late_can(int kind, enum priority); // NULL, or why not
void late_launch(int kind, enum priority);
unsigned late_tiny(void);             // launches TINY kernels one after the other; how many came and went
bool late_done(void);                 // whether it has ended
void late_finish(void);               // waits until all have
bool late_has(int kind, unsigned sm); // whether that SM is one of its
const char *late_priorities(void);    // as its process sees them
void late_end(void);
const char *own_priorities(void);
const char *late_client_priority(void); // of MPS
const char *own_client_priority(void);

// The sections.
void section_blocks(void);
void section_blocks_both(void);
void section_blocks_spinner(void);
void section_copies(void);
void section_copies_1(void);
void section_copies_32(void);
void section_channels(void);
void section_channels_32(void);

#endif
