// harm.h - which kernels of this process hurt the requests of others at any width. It knows no clock, GPU or lock: one thread calls, and
// says which ran beside each window and whether that was slow.
#ifndef GPREEMPT_HARM_H
#define GPREEMPT_HARM_H

#include <stdbool.h>
#include <stdint.h>

enum {
	GP_HARM_FUNCTIONS = 256, // that are known at a time, a power of two; one that was not seen for long goes
	GP_HARM_BESIDE = 64,     // functions beside one window: where there were more, it says nothing of any
};

struct gp_harm_function {
	uintptr_t key; // 0: free.
	uint32_t ran, slow; // Windows that it ran beside, and slow ones of these, each in 1/256 and shared by all that ran there.
	uint32_t seen;     // The number of the latest window.
	uint32_t until;    // The number of the window beside which it may run again.
	uint32_t patience; // For how many windows it was held back last; 0: for none, or it has been cleared since.
	bool beside;       // It ran beside the window that is open.
};

// Zero: nothing is known.
struct gp_harm {
	struct gp_harm_function function[GP_HARM_FUNCTIONS];
	uint16_t beside[GP_HARM_BESIDE]; // places of those that ran beside the window that is open
	uint32_t count;
	bool many;        // More functions ran than beside has room for.
	bool kept;        // A function was held back in the open window.
	uint32_t windows; // Windows beside which a function ran, or was held back.
	uint64_t held;    // Functions that are held back now.
	uint64_t found;   // Times that a function was found to hurt.
};

enum gp_verdict { GP_UNJUDGED, GP_GOOD, GP_SLOW }; // of a window, by the process that had it

bool gp_harm_holds(struct gp_harm *, uintptr_t function); // it is not to run beside this window
void gp_harm_ran(struct gp_harm *, uintptr_t function);   // it runs beside this window
// The window is over. True: it was slow, a function is to blame for that, and is held back from now on.
bool gp_harm_closes(struct gp_harm *, enum gp_verdict);

#endif
