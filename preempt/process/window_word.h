// window_word.h - the state of a context's window and the count of its operations, in one word: neither changes behind the other's back.
//
// Writers: a thread that submits counts its operation and sets the work bit by one compare-and-swap. A thread that finds all counted
// operations done, and the watcher that closes, swap from the very word that they looked at. Under the GPU's lock the window is opened,
// and dropped as its context ends, from any word.
// Readers: any thread. Pairing: the swap fails where work came meanwhile. Without that a window would be closed over work.
// window_orders_test.c tries every order.
#ifndef GPREEMPT_WINDOW_WORD_H
#define GPREEMPT_WINDOW_WORD_H

#include <stdbool.h>
#include <stdint.h>

enum { GP_WINDOW_WORKS = 1, GP_WINDOW_OPEN = 2, GP_WINDOW_BITS = 2 }; // The count of operations is above the bits.

// GP_CLOSED -> GP_GRACE by a hint, or a thread that waits; GP_CLOSED -> GP_OPENING -> GP_OPEN by work.
// GP_OPEN <-> GP_GRACE -> GP_CLOSED.
enum gp_window_state {
	GP_CLOSED,                    // No window, no work.
	GP_OPENING = GP_WINDOW_WORKS, // A thread that submits has counted its work, and opens the window next.
	GP_GRACE = GP_WINDOW_OPEN,    // All is done. The window stays open for a while.
	GP_OPEN = GP_WINDOW_WORKS | GP_WINDOW_OPEN, // Work may be unfinished.
};

enum gp_window_event {
	GP_SUBMITTED, // An operation is counted.
	GP_FINISHED,  // All that are counted are done.
	GP_CALLED,    // A thread is in a call that may block: as work, while the window is open.
	GP_OPENS,     // Under the GPU's lock, as the next two.
	GP_CLOSES,    // Only where no work is.
	GP_ENDS,      // The context does, also with unfinished work.
};

static inline enum gp_window_state gp_window_state(uint64_t word) { return word & GP_OPEN; }
static inline uint64_t gp_window_activity(uint64_t word) { return word >> GP_WINDOW_BITS; }

static inline uint64_t gp_window_after(uint64_t word, enum gp_window_event event)
{
	switch (event) {
	case GP_SUBMITTED: return (word | GP_WINDOW_WORKS) + (1 << GP_WINDOW_BITS);
	case GP_FINISHED: return word & ~(uint64_t)GP_WINDOW_WORKS;
	case GP_CALLED: return word & GP_WINDOW_OPEN ? word | GP_WINDOW_WORKS : word;
	case GP_OPENS: return word | GP_WINDOW_OPEN;
	case GP_CLOSES: return word & GP_WINDOW_WORKS ? word : word & ~(uint64_t)GP_WINDOW_OPEN;
	case GP_ENDS: return word & ~(uint64_t)GP_WINDOW_OPEN;
	}
	return word;
}

// From the word that was looked at, and no other. False: it is another by now, or the event changes nothing in its state.
static inline bool gp_window_change(_Atomic uint64_t *window, uint64_t word, enum gp_window_event event)
{
	uint64_t next = gp_window_after(word, event);
	return next != word &&
	       __atomic_compare_exchange_n((uint64_t *)window, &word, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#endif
