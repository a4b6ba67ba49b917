// width.h - how many SMs the requests of this process leave to lower levels, by kind of request. It knows no clock, GPU or lock: the
// caller holds one, and says how long windows lasted.
#ifndef GPREEMPT_WIDTH_H
#define GPREEMPT_WIDTH_H

#include "preempt/gpu/harm.h"

enum {
	GP_WIDTH_KINDS = 64,  // that are known at a time; the least recently used one goes
	GP_WIDTH_LEVELS = 4,  // 0: nothing is left, then 1/8, 1/4 and 1/2 of the SMs
	GP_WIDTH_SAMPLES = 8, // windows by which a level is judged
};

// The latest windows: how long they had work, and of how many operations.
struct gp_durations {
	uint64_t ns[GP_WIDTH_SAMPLES];
	uint32_t operations[GP_WIDTH_SAMPLES];
	uint32_t count; // ever, since it was emptied
};

// How long windows of so many operations have work while nothing is left: a straight line through the middle of the windows that were seen.
struct gp_yardstick {
	uint64_t ns[2]; // of the two windows in the middle: as many are above the line as below
	uint32_t operations[2];
	uint64_t each_ns;     // that one more operation takes
	uint64_t median_ns;   // of all the windows
	uint32_t least, most; // operations that windows had; 0: there is no yardstick
};

// Zero: nothing is known.
struct gp_width {
	struct gp_durations alone;  // while nothing was left
	struct gp_durations beside; // while the level was left
	struct gp_yardstick yardstick;
	uint32_t windows;           // How many, since the kind is known.
	uint32_t stood;             // Windows that were judged since the level was taken up.
	uint32_t unknown;           // Operations of a window that the yardstick does not cover; 0: there is none.
	uint32_t asked;             // Windows that have left nothing to measure that.
	uint8_t level;              // Its windows leave this, but for those that measure the yardstick.
	uint8_t too_wide;           // The latest level that was found too wide; 0: none.
	uint32_t retry_after;       // The number of windows at which that level may be tried again.
	uint32_t patience;          // How many windows it waited for that last; 0: it did not.
	struct gp_yardstick before; // The yardstick when the level was given up; most is 0: none was, or that is over.
	uint8_t given_up;           // The level that was given up.
	bool had_stood;             // That level was not on trial any more.
	bool harmed;                // That level made windows slow, and not by chance.
	bool had_chance;            // That level was taken up again, and has not stood since.
	uint8_t excused;            // Slow windows that others took the blame for, since it stood.
};

struct gp_widths {
	uint64_t key[GP_WIDTH_KINDS]; // 0: free
	uint64_t used[GP_WIDTH_KINDS];
	struct gp_width width[GP_WIDTH_KINDS];
	uint64_t clock;
	uint32_t open;          // Place of the kind whose window is open, and 1 more; 0: none is.
	uint32_t level;         // The level that this window leaves.
	bool slow;              // This window was so slow that it leaves nothing any more.
	struct gp_width before; // The kind of the latest slow window, in the state before that window.
	uint32_t before_of;     // That kind's place, and 1 more; 0: there is none.
	uint64_t before_key;
	uint64_t kinds;    // kinds whose width is known now
	uint64_t too_wide; // times that a level was found too wide
};

uint32_t gp_width_opens(struct gp_widths *, uint64_t key); // the level that the window leaves. Any key is a kind
// The window has had work for so long, for so many operations, and its work goes on. True: it is to leave nothing any more.
bool gp_width_falls(struct gp_widths *, uint64_t busy_ns, uint64_t operations);
// The verdict of such a window on the kernels beside it; GP_UNJUDGED: none. Comes before gp_width_closes.
enum gp_verdict gp_width_verdict(const struct gp_widths *, uint64_t busy_ns, uint64_t operations);
// Takes the latest slow window back, since another process blames its own kernel for it. Believes that a few times only (EXCUSES in
// width.c).
void gp_width_excuse(struct gp_widths *);
// The window is over. judged: how long it had work, for so many operations, says how much it suffered from what it left.
void gp_width_closes(struct gp_widths *, uint64_t busy_ns, uint64_t operations, bool judged);
uint32_t gp_width_sms(uint32_t level, uint32_t sms); // of a GPU with so many; green contexts have SMs in multiples of 8

#endif
