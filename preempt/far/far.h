// far.h - how the helper calls functions of the program's core.
//
// The helper is a process of its own, which runs the library's Go code. Both processes have loaded the same file, and share one memory, the
// page. A lane is a thread of the program that carries out one call at a time for the helper. Calls of different lanes run beside each other:
// what may wait for long has a lane to itself.
#ifndef GPREEMPT_FAR_H
#define GPREEMPT_FAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preempt/process/process.h"

enum gp_lane_of {
	GP_LANE_CORE,                            // All that has no other, and does not wait.
	GP_LANE_REWRITER,                        // Reads code of the program, whose file may be slow.
	GP_LANE_LOG,                             // A write to standard error that may wait for ever.
	GP_LANE_MOVER,                           // Moves memory.
	GP_LANE_AGENT,                           // And the next: one for each GPU.
	GP_LANE_METER = GP_LANE_AGENT + GP_GPUS, // And the next: one for each GPU. The driver answers when it likes.
	GP_LANES = GP_LANE_METER + GP_GPUS,
};

enum { GP_FAR_ARGUMENTS = 6, GP_FAR_DOUBLES = 4, GP_FAR_DATA = 64 << 10 };

// One call. An argument whose bit is set in in_data is an offset in data, of what it points to.
struct gp_far_call {
	uint64_t function; // offset in the mapping of the library's file
	uint64_t argument[GP_FAR_ARGUMENTS];
	double number[GP_FAR_DOUBLES];
	uint32_t in_data;
	uint32_t text;   // 1: it returns text or NULL, which goes to data, up to GP_FAR_TEXT bytes with its end
	uint64_t result; // text: 0 where it was NULL
};
enum { GP_FAR_TEXT = 256 };

// writers: state goes FREE -> ASKED by the helper, -> ANSWERED by the lane's thread, -> FREE by the helper; call and data belong to the one
// that changes the state next. readers: the other one, by its futex. pairing: release stores, acquire loads. what breaks: half a call is read.
struct gp_page;
struct gp_lane {
	_Atomic uint32_t state; // futex
	struct gp_page *page; // the program's note: a thread of its own serves it (atomic). That thread's last access to the page clears it
	uint32_t unused[12];
	struct gp_far_call call;
	uint8_t pad[4096 - 64 - sizeof(struct gp_far_call)];
	uint8_t data[GP_FAR_DATA];
};
enum gp_lane_state { GP_LANE_FREE, GP_LANE_ASKED, GP_LANE_ANSWERED, GP_LANE_CLOSED };

struct gp_page {
	// writers: the helper after it has sent a question, its parent after it has ended, the program as it exits. readers: the thread with the
	// descriptors. pairing: it reads the bell, then looks for each of these, then waits. what breaks: a question waits for the next ring.
	_Atomic uint32_t bell; // futex
	// For the helper: enum gp_helper_bell. futexes
	_Atomic uint32_t bells[GP_HELPER_BELLS];
	uint8_t build[256]; // the program's library: its file may be another one by now
	uint8_t pad[4096 - 256 - 4 * (1 + GP_HELPER_BELLS)];
	struct gp_lane lane[GP_LANES];
};

// The helper's side. Carries out a call in the program; result 0 once the program is gone.
void gp_far_use(struct gp_page *);
struct gp_lane *gp_far_begin(uint32_t lane); // takes the lane, or CORE where it is not open; its data may be written then
bool gp_far_is_open(uint32_t lane);
void gp_far_opened(uint32_t lane);
void gp_far_carry_out(struct gp_lane *, void (*function)(void));
void gp_far_end(struct gp_lane *);

// The program's side.
bool gp_lane_open_here(uint32_t lane); // starts the thread of a lane, from the one that serves CORE; false: there is none
void gp_lane_serve(struct gp_page *, uint32_t lane); // on this thread, until the lanes are closed
// Before and after a call. The helper may make one since it knows the result of another, which another thread has carried out.
void gp_far_order(void);
void gp_lanes_close(struct gp_page *); // their threads end after the call that they are in
void gp_lanes_end(struct gp_page *); // returns after these calls; those that change nothing and may wait for ever have a second
bool gp_lanes_have_ended(struct gp_page *); // no thread but CORE's is left in the page

uint64_t gp_far_calls(void);              // the number of those that were carried out
bool gp_lanes_are_busy(struct gp_page *); // a call that ends is under way

// given.c: code that the helper has rewritten, in memory of the program.
int64_t gp_given_map(int fd, uint64_t bytes); // a copy of a file; its address, or -errno. By the thread with the descriptors, as gp_given_return
struct gp_bridge_answer;
void gp_given_answer(const struct gp_bridge_answer *); // gp_bridge_request_answer: the request has the memory that the answer names
void gp_given_return(void);                            // behind the last answer: unmaps what no request has got

#endif
