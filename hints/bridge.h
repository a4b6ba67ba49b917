// bridge.h - what the learner, which is Go, calls: cgo reads no _Atomic fields.
#ifndef GPREEMPT_HINTS_BRIDGE_H
#define GPREEMPT_HINTS_BRIDGE_H

#include <stdbool.h>
#include <stdint.h>

// From here on the sources in a bit set give hints.
void gp_hints_begin(uint32_t sources);
void gp_give_arrival(uint64_t from_ns, uint64_t valid_ns, double confidence);
const void *gp_socket_hooks_table(void);
void gp_sockets_look(void); // at what the program reads from, if it is not known yet

// The numbers of arrivals and announcements so far. _take removes the i-th; its at_ns is 0 if it was overwritten.
uint32_t gp_arrivals_count(void);
struct gp_arrival_taken {
	uint64_t at_ns, held_ns, due_ns;
	uint32_t ready, dropped;
};
void gp_arrivals_take(uint32_t i, struct gp_arrival_taken *);
uint32_t gp_announcements_count(void);
struct gp_announcement_taken {
	uint64_t at_ns, key;
	uint32_t estimate, fd, generation;
};
void gp_announcements_take(uint32_t i, struct gp_announcement_taken *);

uint64_t gp_hint_saves_ns(void); // what a hint saves at most: a switch, or a stop

// Store what was learnt of a place, unless another key has it by now, and of a connection.
void gp_estimate_set(uint32_t place, uint64_t key, uint64_t delay_ns, uint64_t valid_ns, uint32_t likely_ppm);
void gp_connection_likely(uint32_t fd, uint32_t generation, uint32_t likely_ppm);

#endif
